// Misspelt and mutated recipes: each is refused with its place and the right key, and never
// crashes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "core/sanitizers.h"
#include "core/suggest.h"
#include "core/yaml.h"
#include "data/registry.h"
#include "recipes/engine/recipe.h"

namespace linnet {
namespace {

// A recipe that gives every key of the engine's own sections, and of its data's kind.
std::string full_recipe(const std::string& kind = "text") {
  Recipe recipe;
  recipe.name = "full";
  recipe.description = "Every key";
  recipe.task = TaskConfig();
  // A kind that makes its sequences reads no files.
  recipe.data = DataConfig(kind, find_data_kind(kind).sequences() == nullptr ? "books" : "");
  recipe.model.attention = parse_yaml("{name: softmax, scale: 2}", "");
  recipe.optim.ema = EmaConfig();
  recipe.optim.groups = {GroupRule()};
  recipe.init = InitConfig{.from = "runs/lm"};
  recipe.train.max_steps = 10;
  recipe.train.tokens_per_update = 4096;
  recipe.evaluate.protocols = {{128, 32, false}};
  recipe.generate.prompt = "Once upon: a time";
  recipe.sweep = parse_yaml("{model.attention: [{name: softmax}, {name: lavo}]}", "");
  recipe.published = PublishedConfig{
      "abc T3a", "wikitext103_lm", "BASE", "", "test", {{"eval_context=480", 512, 32, false}}};
  return to_yaml(to_config_node(recipe));
}

// Where a sanitizer watches, one of so many: the same code runs for all.
constexpr int kThinned = kAddressSanitizer || kThreadSanitizer ? 10 : 1;

std::vector<std::string> one_edit_typos(const std::string& word) {
  const std::string letters = "abcdefghijklmnopqrstuvwxyz_";
  std::set<std::string> typos;
  for (size_t i = 0; i <= word.size(); ++i) {
    for (const char c : letters) {
      std::string inserted = word;
      typos.insert(inserted.insert(i, 1, c));
      if (i == word.size()) continue;
      std::string replaced = word;
      replaced[i] = c;
      typos.insert(replaced);
    }
    if (i < word.size()) {
      std::string deleted = word;
      typos.insert(deleted.erase(i, 1));
    }
    if (i + 1 < word.size()) {
      std::string swapped = word;
      std::swap(swapped[i], swapped[i + 1]);
      typos.insert(swapped);
    }
  }
  typos.erase(word);
  typos.erase("");
  return {typos.begin(), typos.end()};
}

bool has(const FieldSchema& field, const std::string& kind) {
  return field.kinds.empty() || std::count(field.kinds.begin(), field.kinds.end(), kind) > 0;
}

// The keys of a recipe whose data are of that kind, without those that kind `before` has, too.
void collect_typed(const std::vector<FieldSchema>& fields, const std::vector<std::string>& section,
                   const std::string& kind, const std::string& before,
                   std::vector<std::vector<std::string>>& paths) {
  for (const FieldSchema& field : fields) {
    if (!has(field, kind)) continue;
    std::vector<std::string> path = section;
    path.push_back(field.name);
    if (before.empty() || !has(field, before)) paths.push_back(path);
    const bool own = !before.empty() && !field.kinds.empty() && !has(field, before);
    collect_typed(field.fields, path, kind, own ? "" : before, paths);
  }
}

// `node` with the last key of `path` misspelt, lists entered at their first element; `place`
// becomes the place of that key.
ConfigNode with_typo(const ConfigNode& node, const std::vector<std::string>& path, size_t depth,
                     const std::string& typo, std::string& place) {
  ConfigNode copy;
  if (node.is_sequence()) {
    std::vector<ConfigNode> items = node.items();
    items.at(0) = with_typo(items.at(0), path, depth, typo, place);
    copy = ConfigNode::sequence(std::move(items));
  } else {
    std::vector<ConfigEntry> entries = node.entries();
    for (ConfigEntry& entry : entries) {
      if (entry.key != path[depth]) continue;
      if (depth + 1 < path.size()) {
        entry.value = with_typo(entry.value, path, depth + 1, typo, place);
      } else {
        place = entry.key_location.text();
        entry.key = typo;
      }
    }
    copy = ConfigNode::map(std::move(entries));
  }
  copy.set_location(node.location());
  return copy;
}

std::vector<std::string> keys_beside(const ConfigNode& node, const std::vector<std::string>& path,
                                     size_t depth) {
  if (node.is_sequence()) return keys_beside(node.items().at(0), path, depth);
  if (depth + 1 == path.size()) return node.keys();
  return keys_beside(*node.find(path[depth]), path, depth + 1);
}

struct Typo {
  const std::vector<std::string>* path;
  std::string section;  // with a dot at its end
  std::string word;
};

struct Typos {
  int tried = 0, right = 0;
};

// Whether one of them lies in the other.
bool nested(const std::string& section, const std::string& other) {
  return section.starts_with(other) || other.starts_with(section);
}

// A recipe with all of these, of sections that do not touch each other: each is a problem of its
// own.
void try_together(const ConfigNode& root, const std::vector<Typo>& typos, Typos& typos_of_all) {
  ConfigNode changed = root;
  std::vector<std::string> places(typos.size());
  for (size_t i = 0; i < typos.size(); ++i) {
    changed = with_typo(changed, *typos[i].path, 0, typos[i].word, places[i]);
  }
  typos_of_all.tried += static_cast<int>(typos.size());
  try {
    parse_recipe(changed);
    ADD_FAILURE() << typos[0].word << " was accepted for " << typos[0].path->back();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.code(), ErrorCode::unknown_key) << error.what();
    for (size_t i = 0; i < typos.size(); ++i) {
      const std::string key = typos[i].section + typos[i].word;
      const auto found = std::find_if(error.problems().begin(), error.problems().end(),
                                      [&](const auto& problem) { return problem.key == key; });
      ASSERT_NE(found, error.problems().end()) << key << " was accepted: " << error.what();
      EXPECT_EQ(found->code, ErrorCode::unknown_key) << found->text;
      EXPECT_EQ(found->place, places[i]) << found->text;
      typos_of_all.right +=
          found->text.find("did you mean '" + typos[i].path->back() + "'?") != std::string::npos;
    }
  }
}

// Whether a kind of the section that holds the last key of `path` has a key of that name.
bool is_key_of_a_kind(const std::vector<std::string>& path, const std::string& name) {
  const auto named = [](const std::vector<FieldSchema>& fields, const std::string& key) {
    return std::find_if(fields.begin(), fields.end(),
                        [&key](const FieldSchema& field) { return field.name == key; });
  };
  static const ConfigSchema schema = schema_of<Recipe>();
  const std::vector<FieldSchema>* fields = &schema.fields;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const auto section = named(*fields, path[i]);
    if (section == fields->end()) return false;  // such as model.attention, which has no fields
    fields = &section->fields;
  }
  return named(*fields, name) != fields->end();
}

void try_typos(const ConfigNode& root, const std::vector<std::vector<std::string>>& paths,
               Typos& typos_of_all) {
  constexpr size_t kStride = 5 * kThinned;  // typos of a key, starting elsewhere for each key
  std::map<std::string, std::vector<Typo>> waiting;  // by section
  for (size_t k = 0; k < paths.size(); ++k) {
    const auto& path = paths[k];
    const std::vector<std::string> siblings = keys_beside(root, path, 0);
    std::string section;
    for (size_t i = 0; i + 1 < path.size(); ++i) section += path[i] + ".";
    const std::vector<std::string> typos = one_edit_typos(path.back());
    for (size_t i = k % kStride; i < typos.size(); i += kStride) {
      const std::string& typo = typos[i];
      if (typo == "extends" || std::count(siblings.begin(), siblings.end(), typo) > 0) continue;
      if (is_key_of_a_kind(path, typo)) continue;  // refused as what it is: data.test as data.text
      waiting[section].push_back({&path, section, typo});
    }
  }
  while (!waiting.empty()) {
    std::vector<Typo> together;
    for (auto at = waiting.begin(); at != waiting.end();) {
      const std::string& section = at->first;
      std::vector<Typo>& typos = at->second;
      const bool free = std::none_of(together.begin(), together.end(), [&](const Typo& other) {
        return nested(section, other.section);
      });
      if (free) {
        together.push_back(std::move(typos.back()));
        typos.pop_back();
      }
      at = typos.empty() ? waiting.erase(at) : std::next(at);
    }
    try_together(root, together, typos_of_all);
  }
}

TEST(RecipeTypos, EveryKeyRefusedWithPlaceAndSuggestion) {
  Typos typos;
  size_t keys = 0;
  const std::string first = data_kinds().front().name;
  for (const DataKind& kind : data_kinds()) {
    SCOPED_TRACE(kind.name);
    const ConfigNode root = parse_yaml(full_recipe(kind.name), "r.yaml");
    ASSERT_NO_THROW(parse_recipe(root));
    const std::string before = kind.name == first ? "" : first;
    std::vector<std::vector<std::string>> paths;
    collect_typed(schema_of<Recipe>().fields, {}, kind.name, before, paths);
    if (before.empty()) {
      for (const char* key : {"name", "scale"}) paths.push_back({"model", "attention", key});
    }
    keys += paths.size();
    try_typos(root, paths, typos);
  }
  const auto [tried, right] = typos;
  EXPECT_GT(keys, 90u);
  EXPECT_GT(tried, 5000 / kThinned);
  EXPECT_TRUE(right >= 0.95 * tried) << right << " of " << tried;
  RecordProperty("first_suggestion_right", right);
  RecordProperty("typos", tried);
}

// Suggestions when all keys are absent, so that only the spelling helps.
TEST(RecipeTypos, SpellingAloneFindsTheKey) {
  const std::vector<std::string> keys = {
      "kind",   "path",       "tokenizer", "context",  "layers",     "width",        "heads",
      "depth",  "attention",  "name",      "rank",     "window",     "basis",        "scale",
      "lr",     "betas",      "eps",       "schedule", "clip_norm",  "weight_decay", "warmup_steps",
      "groups", "dropout",    "norm",      "ffn",      "activation", "tied",         "positions",
      "split",  "vocabulary", "lowercase", "pad",      "pooling",    "classes",      "min_lr",
      "period", "momentum",   "nesterov",  "ema"};
  int tried = 0, right = 0;
  for (const std::string& key : keys) {
    for (const std::string& typo : one_edit_typos(key)) {
      if (std::count(keys.begin(), keys.end(), typo) > 0) continue;
      ++tried;
      const std::vector<std::string> near = nearest_words(typo, keys);
      right += !near.empty() && near.front() == key;
    }
  }
  EXPECT_TRUE(right >= 0.95 * tried) << right << " of " << tried;
  RecordProperty("first_suggestion_right", right);
  RecordProperty("typos", tried);
}

// Seeded mutations of a recipe's text: bytes changed, removed, doubled, pieces moved or repeated.
std::string mutate(std::string text, std::mt19937& random) {
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  static const char* const kTokens[] = {":",  ": ",  "- ",  "[",  "]",     "{",    "}",     "&a ",
                                        "*a", "!t ", "\"",  "'",  "|\n",   "\n",   "\t",    "#",
                                        ",",  "? ",  "<<",  "0",  "1e999", "null", "---\n", "\xFF",
                                        "%",  "\\",  "\\x", "..", "=",     "\r\n"};
  for (size_t edits = 1 + pick(4); edits > 0 && !text.empty(); --edits) {
    const size_t at = pick(text.size());
    switch (pick(6)) {
      case 0:
        text[at] = static_cast<char>(pick(256));
        break;
      case 1:
        text.erase(at, 1 + pick(8));
        break;
      case 2:
        text.insert(at, kTokens[pick(std::size(kTokens))]);
        break;
      case 3:
        text.insert(at, text.substr(pick(text.size()), pick(40)));
        break;
      case 4:
        text.resize(at);
        break;
      default:
        text.insert(at, 1, text[pick(text.size())]);
    }
  }
  return text;
}

TEST(RecipeFuzz, MutatedRecipesAreReadOrRefused) {
  const std::string seed_text = full_recipe();
  int accepted = 0, refused = 0;
  for (int seed = 0; seed < 4000 / kThinned; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const std::string text = mutate(seed_text, random);
    try {
      const Recipe recipe = parse_recipe(parse_yaml(text, "r.yaml"));
      ++accepted;
      // An accepted recipe can be written and read again.
      ASSERT_EQ(parse_recipe(parse_yaml(to_yaml(recipe.resolved), "r")).resolved, recipe.resolved)
          << text;
    } catch (const UsageError& error) {
      ++refused;
      ASSERT_EQ(std::string(error.what()).substr(0, 6), "r.yaml") << error.what();
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": not a UsageError: " << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(accepted, 40 / kThinned);
  EXPECT_GT(refused, 1000 / kThinned);
}

TEST(RecipeFuzz, MutatedOverridesAreReadOrRefused) {
  const ConfigNode root = parse_yaml(full_recipe(), "r.yaml");
  const std::string starts[] = {"model.attention={name: softmax}", "train.max_steps=5",
                                "evaluate.contexts=[1, 2]", "generate.prompt=\"a\\n\""};
  for (int seed = 0; seed < 2000 / kThinned; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const std::string argument = mutate(starts[seed % 4], random);
    try {
      ConfigNode node = root;
      apply_overrides(node, {parse_override(argument)});
      const Recipe recipe = parse_recipe(node);
      ASSERT_EQ(parse_recipe(parse_yaml(to_yaml(recipe.resolved), "r")).resolved, recipe.resolved)
          << argument;
    } catch (const UsageError&) {
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": not a UsageError: " << error.what() << "\n" << argument;
    }
  }
}

}  // namespace
}  // namespace linnet
