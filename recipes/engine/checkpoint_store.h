// The checkpoints of a run: saved whole or not at all, the newest kept, damaged ones skipped.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "recipes/engine/checkpoint_files.h"

namespace linnet {

struct SkippedCheckpoint {
  std::string path;
  std::string reason;
};

struct NewestCheckpoint {
  std::optional<std::string> path;         // empty: no valid checkpoint
  std::vector<SkippedCheckpoint> skipped;  // newer ones that are damaged, newest first
};

struct BestCheckpoint {
  std::string path;
  int64_t step = 0;
  std::string metric;
  double value = 0;
};

// The folder checkpoints/ of a run directory:
//   step-NNNNNNNN/           one checkpoint
//   best.json                which one has the best evaluation
//   tmp-OWNER-*              being written or being deleted by the trainer of that run
//   replaced-step-NNNNNNNN/  the older of two checkpoints of one step, while they are exchanged
//   abandoned-step-NNNNNNNN/ later than the step from which the run was taken up again
// One process writes; any number may read. Whatever call fails, and wherever the process dies, at
// least one of the old newest checkpoint and the new one stays valid.
class CheckpointStore {
 public:
  // Touches nothing on the disk. `keep` >= 1 newest checkpoints are kept, plus the best and the one
  // that keep_also() named. `owner`, the id of a writer's run, is in the names of its temporaries
  // (tmp-* when it is empty); no others are deleted.
  explicit CheckpointStore(std::string run_directory, int keep = 3, const std::string& owner = "");

  // Saves a checkpoint durably and returns its path; then deletes what retention gives up, where a
  // failure is only a warning. Throws Error when the disk has too little space (before writing)
  // or when any call fails; older checkpoints are untouched then.
  std::string save(int64_t step, const std::map<std::string, std::string>& files,
                   const JsonValue& metadata);

  // The checkpoint of this step is kept until another is named; -1: none.
  void keep_also(int64_t step) { also_kept_ = step; }
  // Deletes what retention gives up. A failure is only a warning.
  void evict();

  // Names the checkpoint of a saved step as the best one; it is kept until another is named.
  void mark_best(int64_t step, const std::string& metric, double value);
  // Empty when none was named. Throws Error when best.json is damaged; repair_best names one again.
  std::optional<BestCheckpoint> best() const;
  void forget_best();

  // The newest checkpoint whose every byte verifies, and which newer ones do not and why. Lists
  // again when its writer deletes one meanwhile.
  NewestCheckpoint newest_valid() const;

  // To be called when training goes on from `step`: later checkpoints are renamed to abandoned-*
  // (deleted once the run has passed their step), and the best one is forgotten if it is among
  // them. What a process that was killed left behind is removed.
  void rewind_to(int64_t step);

  // Steps of the checkpoints, valid or not, ascending.
  std::vector<int64_t> steps() const;
  // Path of the checkpoint of a step, whether it exists or not.
  std::string path_of(int64_t step) const;

 private:
  std::string temporary(const std::string& name) const;
  bool is_temporary(std::string_view name) const;
  void remove_checkpoint(const std::string& name);
  void clean_leftovers();
  bool list_valid(NewestCheckpoint& result) const;
  void apply_retention(int64_t saved_step);

  std::string run_directory_;
  std::string folder_;
  int keep_;
  int64_t also_kept_ = -1;
  std::string temporary_;  // with what the names of temporaries begin
};

// The checkpoint that a user means: a checkpoint directory itself, or of a run directory the best
// one (by the evaluations of the checkpoints, where best.json or the one that it names is damaged
// or missing), else the newest valid one, after a divergence the newest known to be sound; damaged
// ones are skipped with a warning. It is verified. Throws UsageError when the path is neither,
// Error when there is no valid checkpoint.
std::string find_checkpoint(const std::string& run_or_checkpoint);

// load_checkpoint of find_checkpoint, which is asked again when the run's trainer deletes that
// checkpoint before it is read.
Checkpoint load_found_checkpoint(const std::string& run_or_checkpoint);

}  // namespace linnet
