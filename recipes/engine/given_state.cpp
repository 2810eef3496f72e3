#include "recipes/engine/given_state.h"

#include <filesystem>
#include <map>
#include <set>

#include "core/files.h"
#include "core/hash.h"
#include "core/hdf5.h"
#include "core/yaml.h"
#include "recipes/engine/best_repair.h"
#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/named_state.h"
#include "recipes/engine/plugin_record.h"
#include "recipes/engine/run_directory.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/train_step.h"
#include "recipes/engine/weight_differences.h"

namespace linnet {
namespace {

constexpr const char* kWeights = "weights.h5";

// The resolved recipe as this version has it.
Recipe recipe_of(const Checkpoint& checkpoint) {
  return parse_recipe(
      parse_yaml(checkpoint.files.at("recipe.yaml"), join_path(checkpoint.path, "recipe.yaml")));
}

// What fixes the optimizer's state and what an update reads, but for its size, which may be said in
// two ways. Rates and limits may differ.
ConfigNode continued_part(const ConfigNode& resolved) {
  ConfigNode part = ConfigNode::map();
  for (const char* key : {"seed", "data"}) part.set(key, *resolved.find(key));
  ConfigNode optim = ConfigNode::map();
  for (const char* key : {"kind", "betas", "eps", "momentum", "ema"}) {
    if (const ConfigNode* value = resolved.find("optim")->find(key)) optim.set(key, *value);
  }
  part.set("optim", std::move(optim));
  return part;
}

void require_same_training(const Recipe& recipe, const Checkpoint& checkpoint) {
  const Recipe before = recipe_of(checkpoint);
  std::string changed =
      first_difference(continued_part(recipe.resolved), continued_part(before.resolved));
  const auto examples = [tokens = recipe.data.context * sizes_of(checkpoint).rows_per_example](
                            const Recipe& of) { return examples_per_update(of.train, tokens); };
  if (changed.empty() && examples(recipe) != examples(before)) {
    changed =
        recipe.train.tokens_per_update ? "train.tokens_per_update" : "train.examples_per_update";
  }
  require_usage(changed.empty(), Cause{ErrorCode::conflict, changed, checkpoint.path},
                "init.state: all takes over optimizer and position, which needs the same seed, "
                "data, optimizer and size of an update, but '",
                changed, "' of ", checkpoint.path, " is another; set it as there, or ",
                kWeightsInstead);
}

// Which of a run's checkpoints find_checkpoint() took, which warned of damage.
const char* kind_of(const Checkpoint& checkpoint, const std::string& run) {
  const CheckpointStore store(run);
  std::optional<BestCheckpoint> named;
  try {
    named = store.best();
  } catch (const Error&) {  // best.json is damaged
  }
  if (named && named->path == checkpoint.path) return "best";
  const auto evaluated = best_by_evaluations(store);
  if (!evaluated || evaluated->path != checkpoint.path) return "newest";
  return named ? "best intact" : "best";
}

// Whether a model may have the parameter and another, of the same trunk, may not: heads (Medusa
// heads, too), and what
// an attention mechanism has of its own in a layer that `trunk` (names of parameters) has, too. An
// output table is lost only to a classifier: of two language models both or none are tied.
bool may_differ(const std::string& name, const std::set<std::string>& trunk) {
  if (name.starts_with("head.") || name.starts_with("medusa.")) return true;
  if (name.starts_with("output.")) {
    const auto head = trunk.lower_bound("head.");
    return head != trunk.end() && head->starts_with("head.");
  }
  const bool of_stack = name.starts_with("encoder.") || name.starts_with("decoder.");
  const std::string_view own = std::string_view(name).substr(of_stack ? 8 : 0);
  for (const std::string attention : {"attention", "cross_attention"}) {
    if (own.starts_with(concat("tied_", attention, "."))) return true;
    const size_t at = name.find(concat(".", attention, "."));
    if (!own.starts_with("layers.") || at == std::string::npos) continue;
    return trunk.contains(concat(name.substr(0, at), ".", attention, "_norm.gain"));
  }
  return false;
}

// The weights there by the names of parameters and buffers.
std::map<std::string, Tensor> given_weights(const GivenState& given) {
  const Checkpoint& checkpoint = given.checkpoint;
  const auto tensors = [&](const char* file) {
    return tensors_from_hdf5(checkpoint.files.at(file), join_path(checkpoint.path, file));
  };
  std::map<std::string, Tensor> weights = tensors(kWeights);
  if (given.origin.file != kAveragedWeights) return weights;
  const Recipe recipe = parse_recipe(parse_yaml(checkpoint.files.at("recipe.yaml"), "recipe.yaml"));
  const std::unique_ptr<Transformer> model = declare_model(recipe, sizes_of(checkpoint));
  std::map<std::string, Tensor> averaged = averaged_weights(
      tensors(kAveragedWeights), model->parameters(), join_path(checkpoint.path, kAveragedWeights));
  averaged.merge(weights);
  return averaged;
}

void require_same_tokenizer(const GivenState& given, const Tokenizer* tokenizer) {
  const std::shared_ptr<const Tokenizer> before = tokenizer_of(given.checkpoint);
  if (before == nullptr || tokenizer == nullptr ||
      before->fingerprint() == tokenizer->fingerprint()) {
    return;
  }
  const auto described = [](const Tokenizer& t) {
    return concat(t.kind(), ", ", t.vocabulary_size(), " ids");
  };
  const std::string run = parent_path(parent_path(given.checkpoint.path));
  const std::string vocabulary = join_path(run, "vocabulary.txt");
  const bool word = before->kind() == "word" && exists(vocabulary);
  throw UsageError({ErrorCode::conflict, "data.tokenizer", given.checkpoint.path},
                   concat("init.from: the tokenizer of ", given.checkpoint.path, " (",
                          described(*before), ") is not that of this recipe (",
                          described(*tokenizer), "), so its weights are about other tokens; ",
                          word ? concat("set data.tokenizer='{kind: word, path: ", vocabulary, "}'")
                               : "set data.tokenizer as it was there"));
}

void require_fitting_checkpoint(const GivenState& given, const Recipe& recipe,
                                const ParameterSet& parameters) {
  const std::map<std::string, Tensor> weights = given_weights(given);
  const std::string& path = given.checkpoint.path;
  WeightDifferences shapes(ErrorCode::conflict, path, "other shapes");
  WeightDifferences missing(ErrorCode::not_found, path, "missing there");
  WeightDifferences extra(ErrorCode::unknown_name, path, "unknown here");
  std::set<std::string> own, there;
  for (const auto& [name, tensor] : weights) there.insert(name);
  // In the order of the model.
  const auto compare = [&](const std::string& name, const Shape& shape) {
    own.insert(name);
    const auto found = weights.find(name);
    if (found == weights.end()) {
      if (given.all || !may_differ(name, there)) missing.add(name);
      return;
    }
    const Tensor& stored = found->second;
    if (stored.shape() == shape && stored.dtype() == DType::f32) return;
    shapes.add(name, concat(" is ", name_of(stored.dtype()), " ", stored.shape(), " there and ",
                            name_of(DType::f32), " ", shape, " here"));
  };
  for (const ParameterSet::Entry& entry : parameters.entries()) compare(entry.name, entry.shape);
  for (const ParameterSet::Buffer& buffer : parameters.buffers()) {
    compare(buffer.name, buffer.shape);
  }
  for (const std::string& name : there) {
    if (!own.contains(name) && (given.all || !may_differ(name, own))) extra.add(name);
  }
  std::vector<Error::Problem> problems;
  std::string text;
  for (const WeightDifferences* differences : {&shapes, &missing, &extra}) {
    differences->report(text, problems);
  }
  if (problems.empty()) return;
  const std::string key = first_difference(*recipe.resolved.find("model"),
                                           *recipe_of(given.checkpoint).resolved.find("model"));
  throw UsageError(std::move(problems),
                   concat("init.from: the weights of ", path, " do not fit this recipe's model",
                          key.empty() ? "" : concat(", whose 'model.", key, "' is another"), text));
}

// As Origin::published.
bool kept_published(const Checkpoint& checkpoint) {
  const ConfigNode recipe = parse_yaml(checkpoint.files.at("recipe.yaml"), "recipe.yaml");
  const ConfigNode* published = recipe.is_map() ? recipe.find("published") : nullptr;
  const std::optional<Origin> before = origin_of(checkpoint);
  return published != nullptr && !published->is_null() && (!before || before->published);
}

GivenState load_pretrained(const Recipe& recipe) {
  const InitConfig& init = *recipe.init;
  GivenState given;
  given.pretrained = std::make_shared<Pretrained>(init.from, *find_pretrained_family(init.map));
  given.pretrained->require_same_model(recipe);
  const SafetensorsFiles& files = given.pretrained->files();
  given.origin = {std::filesystem::absolute(init.from).lexically_normal().string(),
                  0,
                  "weights",
                  file_name(files.path()),
                  files.hash(),
                  init.map,
                  true};
  return given;
}

}  // namespace

GivenState load_given_state(const Recipe& recipe) {
  const InitConfig& init = *recipe.init;
  if (init.map != kLinnetMap) return load_pretrained(recipe);
  GivenState given;
  try {
    given.checkpoint = load_found_checkpoint(init.from);
  } catch (const UsageError& error) {
    throw UsageError({error.code(), "init.from", error.place()},
                     concat("init.from: ", error.what()));
  }
  const Checkpoint& checkpoint = given.checkpoint;
  require_plugins(checkpoint);
  if (checkpoint.path != init.from) {
    given.which = concat("the ", kind_of(checkpoint, init.from), " checkpoint of ", init.from);
  }
  given.all = init.state == InitState::all;
  const bool averaged = !given.all && checkpoint.files.contains(kAveragedWeights);
  const std::string file = averaged ? kAveragedWeights : kWeights;
  require(checkpoint.files.contains(file) && checkpoint.files.contains("recipe.yaml"),
          Cause{ErrorCode::malformed, "init.from", checkpoint.path}, checkpoint.path,
          " is no checkpoint of a run: it needs recipe.yaml and ", file);
  given.origin = {std::filesystem::absolute(checkpoint.path).lexically_normal().string(),
                  checkpoint.step,
                  given.all ? "all" : "weights",
                  file,
                  hash128_hex(checkpoint.files.at(file)),
                  "",
                  kept_published(checkpoint)};
  if (recipe.published && recipe.published->has_rows() && !given.origin.published) {
    given.note = concat("the recipe of ", checkpoint.path,
                        " has no section 'published', as of a smaller first stage than the "
                        "paper's: reports show no figure of this run beside the paper's");
  }
  if (given.all) require_same_training(recipe, checkpoint);
  return given;
}

void require_fitting(const GivenState& given, const Recipe& recipe, const Tokenizer* tokenizer,
                     const ParameterSet& parameters) {
  if (given.pretrained != nullptr) {
    given.pretrained->require_same_vocabulary(tokenizer == nullptr ? 0
                                                                   : tokenizer->vocabulary_size());
    given.pretrained->require_fitting(parameters);
    return;
  }
  require_same_tokenizer(given, tokenizer);
  require_fitting_checkpoint(given, recipe, parameters);
}

std::vector<std::string> take_weights(const GivenState& given, const ParameterSet& parameters) {
  if (given.pretrained != nullptr) return given.pretrained->load(parameters);
  const std::map<std::string, Tensor> own = parameters.tensors();
  std::vector<std::string> fresh, unused, lines;
  if (!given.note.empty()) lines.push_back(given.note);
  std::map<std::string, Tensor> weights = given_weights(given);
  for (const auto& [name, tensor] : own) {
    if (weights.contains(name)) continue;
    fresh.push_back(name);
    weights[name] = tensor.clone();
  }
  std::erase_if(weights, [&](const auto& weight) {
    if (own.contains(weight.first)) return false;
    unused.push_back(weight.first);
    return true;
  });
  load_weights(parameters, weights, given.checkpoint.path);
  begin_as_head(parameters, fresh);
  if (!fresh.empty())
    lines.push_back(concat("keep their initial values: ", names_of_layers(fresh)));
  if (!unused.empty()) lines.push_back(concat("not used there: ", names_of_layers(unused)));
  return lines;
}

}  // namespace linnet
