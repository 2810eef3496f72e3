#include "recipes/engine/run_state.h"

#include "core/files.h"
#include "core/hdf5.h"
#include "core/log.h"
#include "core/yaml.h"
#include "data/registry.h"
#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/plugin_record.h"

namespace linnet {
namespace {

// Where overrides of a checkpoint's recipe come from, for messages.
constexpr const char* kOrigin = "--set";

const std::string& file_of(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.files.find(name);
  require(found != checkpoint.files.end(), Cause{ErrorCode::not_found, name, checkpoint.path},
          "checkpoint ", checkpoint.path, " has no file ", name);
  return found->second;
}

std::map<std::string, Tensor> tensors_of(const Checkpoint& checkpoint, const std::string& name) {
  return tensors_from_hdf5(file_of(checkpoint, name), join_path(checkpoint.path, name));
}

bool sets_tokenizer(const Override& change) {
  if (change.path[0] != "data") return false;
  if (change.path.size() > 1) return change.path[1] == "tokenizer";
  return change.value.is_map() && change.value.contains("tokenizer");
}

// Whether an override says where the data are or which part is which split.
bool names_data(const Override& change) {
  if (change.path[0] != "data") return false;
  return change.path.size() == 1 || says_which_data(change.path[1]);
}

}  // namespace

std::vector<ParameterSpan> layout_of(const ParameterSet& parameters) {
  std::vector<ParameterSpan> layout;
  for (const ParameterSet::Entry& entry : parameters.entries()) {
    layout.push_back({entry.name, entry.begin, entry.end});
  }
  return layout;
}

Updater make_updater(const Recipe& recipe, const ParameterSet& parameters) {
  Updater updater;
  updater.config = recipe.optim;
  updater.layout = layout_of(parameters);
  updater.optimizer =
      make_optimizer(updater.config, updater.layout, parameters.weights().elements(),
                     parameters.weights().dtype(), parameters.weights().device());
  updater.schedule = make_schedule(updater.config, recipe.train.max_steps.value_or(0));
  if (updater.config.ema) {
    updater.average.emplace(parameters.weights(), updater.config.ema->decay,
                            updater.config.ema->warmup);
  }
  return updater;
}

WithAverage::WithAverage(const ParameterSet& parameters, Updater& updater)
    : parameters_(parameters), updater_(updater) {
  swap();
}

WithAverage::~WithAverage() {
  swap();
}

void WithAverage::swap() {
  if (!updater_.average) return;
  updater_.average->swap(parameters_.weights());
  parameters_.refresh_values();
}

CheckpointContents pack_run(const Recipe& recipe, const ParameterSet& parameters,
                            const Updater& updater, const Progress& progress,
                            const Tokenizer* tokenizer, const ModelSizes& sizes,
                            const DataRecord& data, const std::optional<Origin>& origin) {
  CheckpointContents contents;
  contents.files["recipe.yaml"] = to_yaml(recipe.resolved);
  contents.files["weights.h5"] = tensors_to_hdf5(parameters.tensors());
  contents.files["optimizer.h5"] = tensors_to_hdf5(updater.optimizer->state());
  if (updater.average) contents.files["average.h5"] = tensors_to_hdf5(updater.average->state());
  if (tokenizer != nullptr) contents.files["tokenizer.bin"] = tokenizer->serialise();
  contents.metadata.set("step", progress.step)
      .set("examples", progress.examples)
      .set("tokens", progress.tokens)
      .set("seconds", progress.seconds)
      .set("wall_seconds", progress.wall_seconds)
      .set("skipped", progress.skipped)
      .set("skipped_in_a_row", progress.skipped_in_a_row)
      .set("evaluated", JsonValue::object()
                            .set("step", progress.evaluated.step)
                            .set("nll", progress.evaluated.nll)
                            .set("accuracy", progress.evaluated.accuracy))
      .set("sound", JsonValue::object()
                        .set("step", progress.sound.step)
                        .set("guess", progress.sound.guess)
                        .set("doubt", progress.sound.doubt)
                        .set("finite_in_a_row", progress.sound.finite_in_a_row))
      .set("vocabulary", sizes.vocabulary)
      .set("length", sizes.length)
      .set("classes", sizes.classes)
      .set("rows_per_example", sizes.rows_per_example)
      .set("parameters", parameters.count())
      .set("untrained", untrained_elements(parameters))
      .set("data", to_json(data))
      .set("plugins", plugin_record(recipe.resolved));
  if (origin) contents.metadata.set("init", to_json(*origin));
  return contents;
}

std::shared_ptr<const Tokenizer> tokenizer_of(const Checkpoint& checkpoint) {
  if (!checkpoint.files.contains("tokenizer.bin")) return nullptr;
  return tokenizer_from_blob(file_of(checkpoint, "tokenizer.bin"),
                             join_path(checkpoint.path, "tokenizer.bin"));
}

ModelSizes sizes_of(const Checkpoint& checkpoint) {
  const JsonValue* rows = checkpoint.metadata.find("rows_per_example");  // earlier versions: 1
  return {checkpoint.metadata.at("vocabulary").integer(),
          checkpoint.metadata.at("length").integer(), checkpoint.metadata.at("classes").integer(),
          rows == nullptr ? 1 : rows->integer()};
}

std::optional<DataRecord> data_record_of(const Checkpoint& checkpoint) {
  const JsonValue* data = checkpoint.metadata.find("data");
  return data == nullptr ? std::nullopt : std::optional(data_record_from(*data));
}

void require_same_data(const Recipe& recipe, const Task& task, const Checkpoint& checkpoint,
                       const std::string& other_way) {
  const std::optional<DataRecord> record = data_record_of(checkpoint);
  if (!record) return;
  std::vector<Split> splits = {Split::train};
  const EvaluateConfig& scoring = recipe.evaluate;
  if (scoring.every_steps > 0 || scoring.at_end) splits.push_back(split_from_name(scoring.split));
  const std::string changed = changed_splits(*record, task, splits);
  const std::string directory = parent_path(parent_path(checkpoint.path));
  require_usage(changed.empty(), Cause{ErrorCode::conflict, "data", directory}, changed,
                " of the data", in_place(recipe.data), " changed since the run in ", directory,
                " was trained on it: restore the files, or ", other_way);
}

void unpack_run(const Checkpoint& checkpoint, const ParameterSet& parameters, Updater& updater,
                Progress& progress) {
  load_weights(parameters, tensors_of(checkpoint, "weights.h5"), checkpoint.path);
  updater.optimizer->load_state(tensors_of(checkpoint, "optimizer.h5"));
  if (updater.average) updater.average->load_state(tensors_of(checkpoint, "average.h5"));
  progress.step = checkpoint.metadata.at("step").integer();
  progress.examples = checkpoint.metadata.at("examples").integer();
  progress.tokens = checkpoint.metadata.at("tokens").integer();
  progress.seconds = checkpoint.metadata.at("seconds").number();
  // Earlier versions kept the time of updates alone.
  const JsonValue* wall = checkpoint.metadata.find("wall_seconds");
  progress.wall_seconds = wall == nullptr ? progress.seconds : wall->number();
  progress.skipped = checkpoint.metadata.at("skipped").integer();
  progress.skipped_in_a_row = checkpoint.metadata.at("skipped_in_a_row").integer();
  const JsonValue& evaluated = checkpoint.metadata.at("evaluated");
  progress.evaluated = {evaluated.at("step").integer(), evaluated.at("nll").number(),
                        evaluated.at("accuracy").number()};
  if (const JsonValue* sound = checkpoint.metadata.find("sound")) {
    progress.sound = {sound->at("step").integer(), sound->at("guess").boolean(),
                      sound->at("doubt").boolean(), sound->at("finite_in_a_row").integer()};
  } else {  // of an earlier version
    progress.sound = {-1, false, progress.skipped_in_a_row > 0, 0};
  }
}

LoadedModel load_model(const std::string& run_or_checkpoint,
                       const std::vector<std::string>& overrides, Device device) {
  LoadedModel loaded;
  const Checkpoint checkpoint = load_found_checkpoint(run_or_checkpoint);
  loaded.path = checkpoint.path;
  loaded.step = checkpoint.step;
  require_plugins(checkpoint);
  ConfigNode node =
      parse_yaml(file_of(checkpoint, "recipe.yaml"), join_path(checkpoint.path, "recipe.yaml"));
  std::vector<Override> parsed;
  for (const std::string& text : overrides) {
    parsed.push_back(parse_override(text, kOrigin));
    const std::string& section = parsed.back().path[0];
    require_usage(section == "data" || section == "evaluate",
                  Cause{ErrorCode::conflict, parsed.back().text, kOrigin}, kOrigin, ": '",
                  parsed.back().text,
                  "' cannot be changed for a checkpoint; what can are data and evaluate");
    require_usage(!sets_tokenizer(parsed.back()),
                  Cause{ErrorCode::conflict, parsed.back().text, kOrigin}, kOrigin, ": '",
                  parsed.back().text,
                  "': a checkpoint keeps the tokenizer that it was trained with; leave "
                  "data.tokenizer out");
    loaded.data_given = loaded.data_given || names_data(parsed.back());
  }
  apply_overrides(node, parsed);
  loaded.recipe = parse_recipe(node);
  for (const std::string& note : restart_notes(node)) log_info(note);
  loaded.tokenizer = tokenizer_of(checkpoint);
  loaded.data = data_record_of(checkpoint);
  if (loaded.data && !loaded.data_given) {
    loaded.recipe.data = located(loaded.recipe.data, *loaded.data);
  }
  loaded.model = build_model(loaded.recipe, sizes_of(checkpoint), device);
  const ParameterSet& parameters = loaded.model->parameters();
  load_weights(parameters, tensors_of(checkpoint, "weights.h5"), loaded.path);
  if (checkpoint.files.contains("average.h5")) {
    parameters.weights().copy_from(tensors_of(checkpoint, "average.h5").at("average"));
    parameters.refresh_values();
  }
  return loaded;
}

}  // namespace linnet
