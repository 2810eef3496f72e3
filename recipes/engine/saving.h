// Saving a run, and going on with what was saved.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/run_log.h"
#include "recipes/engine/train_step.h"

namespace linnet {

// The task of a run. One that goes on from `checkpoint` (else null) does so with its own tokenizer
// and on the data that it was trained on, wherever it is called from: recipe.data becomes their
// place. Throws UsageError as require_same_data does.
std::unique_ptr<Task> make_task_of_run(Recipe& recipe, const Checkpoint* checkpoint,
                                       const std::string& other_way);

// The checkpoints of a run. Refers to what `parts` refers to. Of several processes all call the
// same functions, and rank 0 alone reads and writes the disk.
class RunSaver {
 public:
  // Reads every file of the data, to record what they hold. `run_id` as in RunLock; `origin`: what
  // a new run began from.
  RunSaver(const TrainParts& parts, const std::string& run_directory, const std::string& run_id,
           const std::optional<Origin>& origin);

  // Goes on from the checkpoint, which weights, optimizer and `progress` are those of: later ones
  // are set aside. Of its files it reads recipe.yaml alone. Warns of another schedule.
  void resume(const Checkpoint& checkpoint, const Progress& progress);
  // After each update, before it is saved: which checkpoint is the sound one. The one before it is
  // deleted unless it is kept for another reason.
  void judge_update(const UpdateResult& result, Progress& progress);
  // After the evaluation of progress.step, before it is saved: a loss of ruined weights
  // (soundness.h) begins the doubt, a sound one ends it.
  void judge_evaluation(Progress& progress) const;
  // The path of the sound checkpoint; "" where none is known.
  std::string sound_checkpoint(const Progress& progress) const;
  // Throws Error, on all ranks, where one has other weights, buffers or averages than rank 0.
  void require_equal_state() const;
  // By checkpoint.every_steps and checkpoint.every_minutes.
  bool is_due(const Progress& progress) const;
  // Unless this step is saved. The metrics reach the disk first. Throws Error when the disk
  // refuses, and where several processes have other weights than rank 0; older checkpoints stay.
  void save(Progress& progress, RunLog& log);
  // Although it is: an evaluation was added to it.
  void save_again(Progress& progress, RunLog& log);
  // Saves the step that was just evaluated and names it the best one if it is.
  void mark_if_best(Progress& progress, RunLog& log);
  // Which data the run is trained on.
  const DataRecord& data() const { return data_; }
  // The one that is named now.
  std::optional<BestCheckpoint> best();
  // Of this run, or of the checkpoint that it goes on from.
  const std::optional<Origin>& origin() const { return origin_; }

 private:
  void warn_of_another_schedule(const Checkpoint& checkpoint, int64_t step) const;
  void write(const Progress& progress, const StateTensors& optimizer, RunLog& log);
  bool is_better(double value);

  TrainParts parts_;
  CheckpointStore store_;
  DataRecord data_;
  std::optional<Origin> origin_;
  int64_t saved_step_ = -1;
  double saved_seconds_ = 0;
};

}  // namespace linnet
