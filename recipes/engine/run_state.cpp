#include "recipes/engine/run_state.h"

#include <cmath>

#include "core/files.h"
#include "core/hdf5.h"
#include "core/log.h"
#include "core/yaml.h"
#include "data/registry.h"
#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/named_state.h"
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

// Those that evaluations take: averaged ones where the run kept them.
std::map<std::string, Tensor> evaluated_weights(const Checkpoint& checkpoint,
                                                const ParameterSet& parameters) {
  std::map<std::string, Tensor> weights;
  if (checkpoint.files.contains("average.h5")) {
    weights = averaged_weights(tensors_of(checkpoint, "average.h5"), parameters,
                               join_path(checkpoint.path, "average.h5"));
  }
  weights.merge(tensors_of(checkpoint, "weights.h5"));
  return weights;
}

// A state as a file of named tensors; from a device each flat one is copied once.
std::string state_file(const StateTensors& state, const ParameterSet& parameters) {
  StateTensors on_host;
  for (const auto& [name, tensor] : state) on_host[name] = tensor.to(Device{});
  return tensors_to_hdf5(named_state(on_host, parameters));
}

// Whether a tensor of an optimizer's state is one value of the whole optimizer, not one of each
// element.
bool is_counter(const std::string& name) {
  return name == "updates" || name == "previous_lr";
}

// Of a whole optimizer's saved state the share that this one has.
void restore_optimizer(const Updater& updater, const ParameterSet& parameters,
                       const StateTensors& saved) {
  StateTensors whole = updater.optimizer->state();
  if (updater.share) {
    for (auto& [name, tensor] : whole) {
      if (!is_counter(name)) tensor = Tensor::zeros(parameters.weights().shape(), tensor.dtype());
    }
  }
  restore_named_state("optimizer", whole, parameters, saved);
  if (!updater.share) return;
  for (const auto& [name, tensor] : updater.optimizer->state()) {
    if (!is_counter(name)) tensor.copy_from(updater.own(whole.at(name)));
  }
}

// What `read` makes of the metadata, which anybody may have written: its errors name the manifest.
template <typename Read>
auto of_metadata(const Checkpoint& checkpoint, const Read& read) {
  try {
    return read(checkpoint.metadata);
  } catch (const Error& error) {
    const std::string path = join_path(checkpoint.path, "manifest.json");
    throw Error({error.code(), error.key(), path}, concat(path, ": ", error.what()));
  }
}

// Sums of so large numbers do not overflow.
constexpr int64_t kLargestCount = int64_t{1} << 53;

int64_t count_of(const JsonValue& group, const char* key, int64_t least = 0) {
  const int64_t count = group.at(key).integer();
  require(least <= count && count <= kLargestCount, Cause{ErrorCode::out_of_range, key}, "'", key,
          "' must be ", least, " to ", kLargestCount, ", found ", count);
  return count;
}

double seconds_of(const JsonValue& group, const char* key) {
  const double seconds = group.at(key).number();
  require(std::isfinite(seconds) && seconds >= 0, Cause{ErrorCode::out_of_range, key}, "'", key,
          "' must be finite and not negative, found ", seconds);
  return seconds;
}

Progress progress_from(const JsonValue& metadata, int64_t step) {
  Progress progress;
  progress.step = count_of(metadata, "step");
  require(progress.step == step, Cause{ErrorCode::conflict, "step"}, "the checkpoint of step ",
          step, " has the state of step ", progress.step);
  progress.examples = count_of(metadata, "examples");
  progress.tokens = count_of(metadata, "tokens");
  progress.seconds = seconds_of(metadata, "seconds");
  // Earlier versions kept the time of updates alone.
  progress.wall_seconds = metadata.find("wall_seconds") == nullptr
                              ? progress.seconds
                              : seconds_of(metadata, "wall_seconds");
  progress.skipped = count_of(metadata, "skipped");
  progress.skipped_in_a_row = count_of(metadata, "skipped_in_a_row");
  const JsonValue& evaluated = metadata.at("evaluated");
  progress.evaluated = {count_of(evaluated, "step", -1), evaluated.at("nll").number(),
                        evaluated.at("accuracy").number()};
  // Earlier versions scored none.
  if (metadata.find("best_scored") != nullptr) {
    progress.best_scored = count_of(metadata, "best_scored", -1);
  }
  if (const JsonValue* sound = metadata.find("sound")) {
    progress.sound = {count_of(*sound, "step", -1), sound->at("guess").boolean(),
                      sound->at("doubt").boolean(), count_of(*sound, "finite_in_a_row")};
  } else {  // of an earlier version
    progress.sound = {-1, false, progress.skipped_in_a_row > 0, 0};
  }
  return progress;
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

Updater make_updater(const Recipe& recipe, const ParameterSet& parameters, Job& job) {
  Updater updater;
  updater.config = recipe.optim;
  updater.layout = layout_of(parameters);
  const Tensor& weights = parameters.weights();
  if (recipe.train.shard_optimizer && !job.is_alone()) {
    updater.share = job.ranks().share(weights.elements());
  }
  updater.optimizer =
      make_optimizer(updater.config, updater.layout, updater.own(weights).elements(),
                     weights.dtype(), weights.device(), updater.share ? updater.share->begin : 0);
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

WithCheckpoint::WithCheckpoint(const ParameterSet& parameters, const Checkpoint& checkpoint)
    : parameters_(parameters) {
  for (const auto& [name, tensor] : parameters.tensors()) before_[name] = tensor.clone();
  load_weights(parameters, evaluated_weights(checkpoint, parameters), checkpoint.path);
}

WithCheckpoint::~WithCheckpoint() {
  load_weights(parameters_, before_, "");
}

StateTensors whole_optimizer_state(const Updater& updater, const ParameterSet& parameters,
                                   Job& job) {
  const StateTensors state = updater.optimizer->state();
  if (!updater.share) return job.leads() ? state : StateTensors();
  Communicator& ranks = job.ranks();
  StateTensors whole;
  for (const auto& [name, on_device] : state) {
    if (is_counter(name)) {  // the same on all ranks
      if (job.leads()) whole[name] = on_device;
      continue;
    }
    const Tensor tensor = on_device.to(Device{});
    if (!job.leads()) {
      if (tensor.elements() > 0) ranks.send(tensor, 0);
      continue;
    }
    const int64_t elements = parameters.weights().elements();
    const Tensor flat = Tensor::empty({elements}, tensor.dtype());
    updater.own(flat).copy_from(tensor);
    for (int rank = 1; rank < ranks.size(); ++rank) {
      const RankShare theirs = ranks.share(elements, rank);
      if (theirs.elements() > 0) {
        ranks.receive(flat.slice(theirs.begin, {theirs.elements()}), rank);
      }
    }
    whole[name] = flat;
  }
  return whole;
}

CheckpointContents pack_run(const Recipe& recipe, const ParameterSet& parameters,
                            const StateTensors& optimizer, const Updater& updater,
                            const Progress& progress, const Tokenizer* tokenizer,
                            const ModelSizes& sizes, const DataRecord& data,
                            const std::optional<Origin>& origin) {
  CheckpointContents contents;
  contents.files["recipe.yaml"] = to_yaml(recipe.resolved);
  contents.files["weights.h5"] = tensors_to_hdf5(parameters.tensors());
  contents.files["optimizer.h5"] = state_file(optimizer, parameters);
  if (updater.average)
    contents.files["average.h5"] = state_file(updater.average->state(), parameters);
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
      .set("best_scored", progress.best_scored)
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
  return of_metadata(checkpoint, [](const JsonValue& metadata) {
    const JsonValue* rows = metadata.find("rows_per_example");  // earlier versions: 1
    return ModelSizes{count_of(metadata, "vocabulary"), count_of(metadata, "length"),
                      count_of(metadata, "classes"),
                      rows == nullptr ? 1 : count_of(metadata, "rows_per_example")};
  });
}

std::optional<DataRecord> data_record_of(const Checkpoint& checkpoint) {
  return of_metadata(checkpoint, [](const JsonValue& metadata) {
    const JsonValue* data = metadata.find("data");
    return data == nullptr ? std::nullopt : std::optional(data_record_from(*data));
  });
}

void require_same_data(const Recipe& recipe, const Task& task, const Checkpoint& checkpoint,
                       const std::string& other_way) {
  const std::optional<DataRecord> record = data_record_of(checkpoint);
  if (!record) return;
  std::vector<Split> splits = {Split::train};
  for (const ScoreOptions& options : scored_by_run(recipe.evaluate)) {
    splits.push_back(options.split);
  }
  const std::string changed = changed_splits(*record, task, splits);
  const std::string directory = parent_path(parent_path(checkpoint.path));
  require_usage(changed.empty(), Cause{ErrorCode::conflict, "data", directory}, changed,
                " of the data", in_place(recipe.data), " changed since the run in ", directory,
                " was trained on it: restore the files, or ", other_way);
}

void unpack_run(const Checkpoint& checkpoint, const ParameterSet& parameters, Updater& updater,
                Progress& progress) {
  load_weights(parameters, tensors_of(checkpoint, "weights.h5"), checkpoint.path);
  restore_optimizer(updater, parameters, tensors_of(checkpoint, "optimizer.h5"));
  if (updater.average) {
    restore_named_state("average", updater.average->state(), parameters,
                        tensors_of(checkpoint, "average.h5"));
  }
  progress = of_metadata(checkpoint, [&](const JsonValue& metadata) {
    return progress_from(metadata, checkpoint.step);
  });
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
  load_weights(parameters, evaluated_weights(checkpoint, parameters), loaded.path);
  return loaded;
}

}  // namespace linnet
