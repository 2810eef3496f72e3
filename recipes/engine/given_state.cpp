#include "recipes/engine/given_state.h"

#include <filesystem>
#include <set>

#include "core/files.h"
#include "core/hash.h"
#include "core/hdf5.h"
#include "core/yaml.h"
#include "recipes/engine/best_repair.h"
#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/plugin_record.h"
#include "recipes/engine/run_directory.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

constexpr const char* kWeights = "weights.h5";
constexpr size_t kNamed = 3;  // parameters of one kind of difference in a message

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

// Parameters that differ in one way.
class Differences {
 public:
  Differences(ErrorCode code, std::string place, const char* what)
      : code_(code), place_(std::move(place)), what_(what) {}
  void add(const std::string& name, const std::string& detail = "") {
    if (count_++ >= kNamed) return;
    text_ += concat(text_.empty() ? "" : ", ", name, detail);
    problems_.push_back({code_, name, place_, concat(what_, ": ", name, detail)});
  }
  // Adds to an error of all of them.
  void report(std::string& text, std::vector<Error::Problem>& problems) const {
    if (count_ == 0) return;
    text += concat("; ", what_, ": ", text_);
    if (count_ > kNamed) text += concat(" and ", count_ - kNamed, " more");
    problems.insert(problems.end(), problems_.begin(), problems_.end());
  }

 private:
  ErrorCode code_;
  std::string place_;
  const char* what_;
  size_t count_ = 0;
  std::string text_;
  std::vector<Error::Problem> problems_;
};

}  // namespace

GivenState load_given_state(const Recipe& recipe) {
  const InitConfig& init = *recipe.init;
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
                  checkpoint.step, given.all ? "all" : "weights", file,
                  hash128_hex(checkpoint.files.at(file))};
  if (given.all) require_same_training(recipe, checkpoint);
  return given;
}

std::map<std::string, Tensor> given_weights(const GivenState& given) {
  const Checkpoint& checkpoint = given.checkpoint;
  const auto tensors = [&](const char* file) {
    return tensors_from_hdf5(checkpoint.files.at(file), join_path(checkpoint.path, file));
  };
  std::map<std::string, Tensor> weights = tensors(kWeights);
  if (given.origin.file != kAveragedWeights) return weights;
  // The average is flat: its parameters lie where the checkpoint's own model has them.
  const std::map<std::string, Tensor> state = tensors(kAveragedWeights);
  const auto average = state.find("average");
  require(average != state.end(), Cause{ErrorCode::malformed, "average", checkpoint.path},
          join_path(checkpoint.path, kAveragedWeights), " holds no average");
  const Recipe recipe = parse_recipe(parse_yaml(checkpoint.files.at("recipe.yaml"), "recipe.yaml"));
  const std::unique_ptr<Transformer> model = declare_model(recipe, sizes_of(checkpoint));
  for (const ParameterSet::Entry& entry : model->parameters().entries()) {
    weights[entry.name] = average->second.slice(entry.begin, entry.shape);
  }
  return weights;
}

void require_fitting(const GivenState& given, const std::map<std::string, Tensor>& weights,
                     const Recipe& recipe, const ParameterSet& parameters) {
  const std::string& path = given.checkpoint.path;
  Differences shapes(ErrorCode::conflict, path, "other shapes");
  Differences missing(ErrorCode::not_found, path, "missing there");
  Differences extra(ErrorCode::unknown_name, path, "unknown here");
  std::set<std::string> own;
  // In the order of the model.
  const auto compare = [&](const std::string& name, const Shape& shape) {
    own.insert(name);
    const auto found = weights.find(name);
    if (found == weights.end()) return missing.add(name);
    const Tensor& there = found->second;
    if (there.shape() == shape && there.dtype() == DType::f32) return;
    shapes.add(name, concat(" is ", name_of(there.dtype()), " ", there.shape(), " there and ",
                            name_of(DType::f32), " ", shape, " here"));
  };
  for (const ParameterSet::Entry& entry : parameters.entries()) compare(entry.name, entry.shape);
  for (const ParameterSet::Buffer& buffer : parameters.buffers()) {
    compare(buffer.name, buffer.shape);
  }
  for (const auto& [name, tensor] : weights) {
    if (!own.contains(name)) extra.add(name);
  }
  std::vector<Error::Problem> problems;
  std::string text;
  for (const Differences* differences : {&shapes, &missing, &extra}) {
    differences->report(text, problems);
  }
  if (problems.empty()) return;
  const std::string key = first_difference(*recipe.resolved.find("model"),
                                           *recipe_of(given.checkpoint).resolved.find("model"));
  throw UsageError(std::move(problems),
                   concat("init.from: the weights of ", path, " do not fit this recipe's model",
                          key.empty() ? "" : concat(", whose 'model.", key, "' is another"), text));
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

}  // namespace linnet
