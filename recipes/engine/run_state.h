// Everything that training continues from, and its checkpoint: weights, moments, counters.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/tokenizer.h"
#include "optim/ema.h"
#include "optim/optim_config.h"
#include "recipes/engine/checkpoint_files.h"
#include "recipes/engine/data_record.h"
#include "recipes/engine/given_state.h"
#include "recipes/engine/job.h"
#include "recipes/engine/model_builder.h"

namespace linnet {

// The validation figures of the last evaluation.
struct Evaluated {
  int64_t step = -1;  // -1: there was none
  double nll = 0, accuracy = 0;
};

// The checkpoint to go back to when training diverges: the newest one known to be sound, since the
// loss of an update of its weights, or of their validation, was (soundness.h). An update that is
// skipped or has the loss of ruined weights puts all later ones in doubt until a validation is
// sound again.
struct SoundCheckpoint {
  int64_t step = -1;   // -1: none
  bool guess = false;  // none was known when an update was skipped: the last one before it
  bool doubt = false;
  int64_t finite_in_a_row = 0;  // sound updates since the last other one
};

// Counters of a run. `examples` is the whole position in the data.
struct Progress {
  int64_t step = 0;
  int64_t examples = 0;
  int64_t tokens = 0;  // trained on: targets, or a classifier's tokens without padding
  double seconds = 0;  // of updates, over all starts of the program
  // The same with all that a run does besides: evaluating, saving, waiting for batches.
  double wall_seconds = 0;
  int64_t skipped = 0;           // updates left out because a gradient was not finite
  int64_t skipped_in_a_row = 0;  // the latest of them
  Evaluated evaluated;
  int64_t best_scored = -1;  // the checkpoint that evaluate.best_on was scored with; -1: none
  SoundCheckpoint sound;
};

// The optimizer side of a run.
struct Updater {
  OptimConfig config;
  std::vector<ParameterSpan> layout;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<Schedule> schedule;
  std::optional<WeightAverage> average;
  // Where the optimizer has only a share of the flat buffers (train.shard_optimizer).
  std::optional<RankShare> share;

  // What the optimizer updates of a flat buffer.
  Tensor own(const Tensor& flat) const {
    return share ? flat.slice(share->begin, {share->elements()}) : flat;
  }
};

// Where each parameter lies in the flat buffers.
std::vector<ParameterSpan> layout_of(const ParameterSet& parameters);
Updater make_updater(const Recipe& recipe, const ParameterSet& parameters, Job& job = alone());
// The state of the whole optimizer, as checkpoints hold it: on rank 0, elsewhere it is empty.
// Shares storage with the optimizer where that has no share. All ranks call it.
StateTensors whole_optimizer_state(const Updater& updater, const ParameterSet& parameters,
                                   Job& job);

// The averaged weights in place of the current ones, where the run keeps an average, for as long
// as it lives: evaluation and samples of a run see what those of its checkpoints see. Refers to
// its arguments.
class WithAverage {
 public:
  WithAverage(const ParameterSet& parameters, Updater& updater);
  ~WithAverage();
  WithAverage(const WithAverage&) = delete;
  WithAverage& operator=(const WithAverage&) = delete;

 private:
  void swap();
  const ParameterSet& parameters_;
  Updater& updater_;
};

// The weights that evaluations of a checkpoint take, in place of the current ones, for as long as
// it lives. Refers to the parameters.
class WithCheckpoint {
 public:
  WithCheckpoint(const ParameterSet& parameters, const Checkpoint& checkpoint);
  ~WithCheckpoint();
  WithCheckpoint(const WithCheckpoint&) = delete;
  WithCheckpoint& operator=(const WithCheckpoint&) = delete;

 private:
  const ParameterSet& parameters_;
  std::map<std::string, Tensor> before_;
};

// The files of a checkpoint: recipe.yaml, weights.h5, average.h5 (with EMA), optimizer.h5,
// tokenizer.bin (with text); its metadata holds the counters, the data and the plugins.
struct CheckpointContents {
  std::map<std::string, std::string> files;
  JsonValue metadata = JsonValue::object();
};
CheckpointContents pack_run(const Recipe& recipe, const ParameterSet& parameters,
                            const StateTensors& optimizer, const Updater& updater,
                            const Progress& progress, const Tokenizer* tokenizer,
                            const ModelSizes& sizes, const DataRecord& data,
                            const std::optional<Origin>& origin);

// nullptr for a checkpoint of a task without text.
std::shared_ptr<const Tokenizer> tokenizer_of(const Checkpoint& checkpoint);
// Those of its data, which its model was made for.
ModelSizes sizes_of(const Checkpoint& checkpoint);
// Empty for checkpoints of versions that did not record their data.
std::optional<DataRecord> data_record_of(const Checkpoint& checkpoint);
// Throws UsageError when a split that the run reads is not what `checkpoint` was trained on;
// `other_way` ends its advice. Checkpoints of versions that did not record their data pass.
void require_same_data(const Recipe& recipe, const Task& task, const Checkpoint& checkpoint,
                       const std::string& other_way);

// Puts a checkpoint back into a run built from the same recipe. Throws Error naming what differs.
void unpack_run(const Checkpoint& checkpoint, const ParameterSet& parameters, Updater& updater,
                Progress& progress);

// A checkpoint for evaluation and generation: recipe, tokenizer and model (averaged weights where
// the run kept them). `overrides` change the recipe's data (but its tokenizer) and evaluate
// sections; throws UsageError for others. Unless they name other data, the recipe's are those of
// the run, found from any current folder. The model lives on `device`.
struct LoadedModel {
  std::string path;
  int64_t step = 0;
  Recipe recipe;
  bool data_given = false;  // the overrides name other data
  std::optional<DataRecord> data;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Transformer> model;
};
LoadedModel load_model(const std::string& run_or_checkpoint,
                       const std::vector<std::string>& overrides = {}, Device device = {});

}  // namespace linnet
