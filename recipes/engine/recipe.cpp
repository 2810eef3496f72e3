// Loading, checking and listing recipes.
#include "recipes/engine/recipe.h"

#include <algorithm>

#include "attention/layer_choice.h"
#include "core/files.h"
#include "core/log.h"
#include "core/suggest.h"
#include "core/yaml.h"
#include "layers/attention_sections.h"
#include "recipes/engine/cudnn_check.h"
#include "recipes/engine/model_attention.h"
#include "recipes/engine/recipe_file.h"
#include "recipes/engine/recipe_name.h"

namespace linnet {
namespace {

constexpr int kFolderDepth = 8;  // of recipe folders

// Dotted paths of all keys below `fields` that are called `key`.
void find_key(const std::vector<FieldSchema>& fields, const std::string& section,
              const std::string& key, std::vector<std::string>& paths) {
  for (const FieldSchema& field : fields) {
    const std::string path = section.empty() ? field.name : concat(section, ".", field.name);
    // Kinds of a section may have the same key.
    const bool known = std::count(paths.begin(), paths.end(), path) > 0;
    if (field.name == key && !known) paths.push_back(path);
    find_key(field.fields, path, key, paths);
  }
}

// Refuses and removes keys that belong to another section: unknown where they are, like none of
// those that could be meant there, but called like a few others.
void refuse_misplaced(const std::vector<FieldSchema>& recipe,
                      const std::vector<FieldSchema>& fields, const std::string& section,
                      ConfigNode& node, ConfigErrors& errors) {
  constexpr size_t kFew = 3;
  if (!node.is_map()) return;
  std::vector<std::string> known, meant;
  for (const FieldSchema& field : fields) {
    known.push_back(field.name);
    if (!node.contains(field.name)) meant.push_back(field.name);
    ConfigNode* below = node.find(field.name);
    if (below == nullptr || field.fields.empty()) continue;
    refuse_misplaced(recipe, field.fields, section + field.name + ".", *below, errors);
  }
  const std::vector<ConfigEntry> entries = node.entries();
  for (const ConfigEntry& entry : entries) {
    if (std::count(known.begin(), known.end(), entry.key) > 0) continue;
    std::vector<std::string> paths;
    find_key(recipe, "", entry.key, paths);
    if (paths.empty() || paths.size() > kFew || !nearest_words(entry.key, meant).empty()) continue;
    std::string text;
    for (const std::string& path : paths)
      text += concat(text.empty() ? "" : " or ", "'", path, "'");
    const std::string where =
        section.empty() ? "" : concat(" in '", section.substr(0, section.size() - 1), "'");
    errors.add(entry.key_location, ErrorCode::unknown_key, section + entry.key,
               concat("unknown key '", entry.key, "'", where, "; did you mean ", text, "?"));
    node.erase(entry.key);
  }
}

void find_recipes(const std::string& folder, int depth, std::vector<std::string>& paths) {
  for (const std::string& name : file_system().list(folder)) {
    const std::string path = join_path(folder, name);
    const auto status = file_system().status(path);
    if (!status) continue;  // a dangling link
    if (status->directory) {
      if (depth > 0) find_recipes(path, depth - 1, paths);
    } else if (name.size() > 5 && name.substr(name.size() - 5) == ".yaml") {
      paths.push_back(path);
    }
  }
}

void check_kv_heads(const ModelConfig& model, const ConfigNode& node, ConfigErrors& errors) {
  try {
    for (const AttentionSection& section : attention_sections(model)) {
      require_grouped_queries(*section.node, section.layers);
    }
  } catch (const UsageError& error) {
    errors.add_conflicts(located_error(node.location_of("kv_heads"), error.cause(), error.what()),
                         "model");
  }
}

}  // namespace

void Recipe::describe(ConfigDescription<Recipe>& d) {
  d.field("name", &Recipe::name, "short name of the experiment, which the folder of its run has");
  d.field("description", &Recipe::description, "one line that says what it shows");
  d.field("seed", &Recipe::seed, "seed of every random draw").at_least(0);
  d.optional("task", &Recipe::task, "what is trained (absent: what the data are for)");
  d.nested("data", &Recipe::data, "data set, tokenizer, context").required();
  d.nested("model", &Recipe::model, "architecture and attention mechanism").required();
  d.nested("optim", &Recipe::optim, "optimizer and schedule").required();
  d.optional("init", &Recipe::init, "what a new run begins from (absent: freshly drawn weights)");
  d.nested("train", &Recipe::train, "size and number of updates").required();
  d.nested("evaluate", &Recipe::evaluate, "scoring of held-out data");
  d.nested("checkpoint", &Recipe::checkpoint, "saving and keeping");
  d.nested("generate", &Recipe::generate, "sampling text");
  d.field(
      "sweep", &Recipe::sweep,
      "runs to compare, all combinations of these values: {dotted.path: [value, ...]}, or {axis: "
      "[{label: NAME, dotted.path: value, ...}, ...]} where a value sets several keys; 'linnet "
      "sweep' trains all, 'train --point' one, 'bench train' times each");
  d.optional("published", &Recipe::published, "the published numbers that it is to repeat");
}

void Recipe::validate(const ConfigNode& at) const {
  sweep_points(sweep);
  if (published && published->has_rows() && published->model.empty() && sweep.is_null()) {
    throw located_error(at.location_of("published"),
                        Cause{ErrorCode::missing_key, "published.model"},
                        "'published.model' is required: the model of the table's rows; a sweep "
                        "with one labelled axis gives it by its labels");
  }
}

ConfigNode load_recipe_node(const std::string& path, const std::vector<std::string>& overrides) {
  std::vector<Override> changes;
  for (const std::string& argument : overrides) {
    changes.push_back(parse_override(argument));
    if (changes.back().path[0] == "extends") {
      throw located_error(changes.back().value.location(), Cause{ErrorCode::conflict, "extends"},
                          "cannot be overridden; give the other recipe instead");
    }
  }
  require_usage(is_there(path), Cause{ErrorCode::not_found, "", path}, "there is no recipe file ",
                path, "; ",
                near_recipe(path, "'linnet recipe list FOLDER' lists those below a folder"));
  require_usage(!is_directory(path), Cause{ErrorCode::wrong_type, "", path}, path,
                " is a folder, not a recipe file; 'linnet recipe list ", path,
                "' lists the recipes below it");
  RecipeFile file = read_recipe_file(path);
  if (!file.left_by.empty()) {
    log_info(path, ": ", file.left_by,
             " is not that of the recipe which it extends: its runs are compared with no published "
             "numbers");
  }
  apply_overrides(file.node, std::move(changes));
  require_plain_name(file.node);
  return std::move(file.node);
}

Recipe parse_recipe(const ConfigNode& node) {
  if (const ConfigNode* extends = node.is_map() ? node.find("extends") : nullptr) {
    throw located_error(extends->location(), Cause{ErrorCode::conflict, "extends"},
                        "'extends' works in recipe files only");
  }
  ConfigErrors errors;
  ConfigNode placed = node;
  const ConfigSchema schema = schema_of<Recipe>();
  refuse_misplaced(schema.fields, schema.fields, "", placed, errors);
  Recipe recipe = parse_config<Recipe>(placed, "", {"extends"}, errors);
  // The mechanism's complaints are worth having beside those of other sections.
  ModelAttention attention;
  if (node.is_map() && node.contains("model") && node.find("model")->is_map()) {
    attention = resolve_model_attention(recipe.model, *node.find("model"), errors);
  }
  errors.throw_if_any();
  if (recipe.model.kv_heads > 0 && recipe.model.kv_heads < recipe.model.heads) {
    check_kv_heads(recipe.model, *node.find("model"), errors);
    errors.throw_if_any();
  }
  if (recipe.train.backend == KernelChoice::cudnn) {
    check_cudnn(recipe, attention, *node.find("train"), errors);
    errors.throw_if_any();
  }
  recipe.given = node;
  recipe.resolved = to_config_node(recipe);
  ConfigNode& model = *recipe.resolved.find("model");
  for (auto& [key, section] : attention.sections) model.set(key, std::move(section));
  for (const char* key : kAttentionKeys) {
    if (model.find(key)->is_null()) model.erase(key);
  }
  recipe.mixer = std::move(attention.mixer);
  for (const char* key : {"task", "init", "sweep", "published"}) {
    if (recipe.resolved.find(key)->is_null()) recipe.resolved.erase(key);
  }
  // A run goes on whether its recipe names the task that it has anyway or not.
  if (recipe.task && recipe.task->kind == default_task(recipe.data)) recipe.resolved.erase("task");
  return recipe;
}

std::vector<RecipeListing> list_recipes(const std::string& folder) {
  require_usage(is_there(folder) && is_directory(folder), Cause{ErrorCode::not_found, "", folder},
                "there is no folder ", folder,
                "; name the folder of your recipes, or recipes/ of linnet's source checkout: "
                "'linnet recipe list FOLDER'");
  std::vector<std::string> paths;
  find_recipes(folder, kFolderDepth, paths);
  std::sort(paths.begin(), paths.end());
  std::vector<RecipeListing> listings;
  for (const std::string& path : paths) {
    RecipeListing listing;
    listing.path = path;
    const std::string file = file_name(path);
    listing.name = file.substr(0, file.size() - 5);
    try {
      const ConfigNode node = load_yaml(path);
      if (const ConfigNode* description = node.find("description")) {
        listing.description = read_text(*description, "description");
      }
      if (const ConfigNode* name = node.find("name")) listing.name = read_text(*name, "name");
    } catch (const Error& error) {
      listing.error = error.what();
    }
    listings.push_back(std::move(listing));
  }
  return listings;
}

}  // namespace linnet
