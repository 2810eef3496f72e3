// Which directory a run writes to, and whether it continues what is there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recipes/engine/checkpoint_files.h"
#include "recipes/engine/recipe.h"
#include "recipes/engine/run_lock.h"

namespace linnet {

// Where a run goes without --out: runs/<recipe's name, else its file's>, of a point
// runs/<name>/<point>.
std::string default_directory(const std::string& recipe_name, const std::string& recipe_path,
                              const std::string& recipe_point);

struct RunPlan {
  std::string directory;
  std::optional<std::string> checkpoint;  // to continue from
  std::unique_ptr<RunLock> lock;          // of a run that is there; null for a dry run
};

// resume = auto: continues the newest valid checkpoint in the directory, if there is one, and
// reports damaged ones that were skipped (when none is valid, it throws Error). never: a fresh
// directory (the next free name when `out` is empty; an `out` that holds a run is refused).
// Anything else is a run directory that must have a valid checkpoint. A run that is there is locked
// first, unless `dry`; nothing else is written. Throws UsageError when another trainer writes to
// it, when the directory holds other files than a run's, and when the run there was made with
// another recipe, naming the first setting that differs; limits, evaluation, checkpoints and
// samples may differ, and `init` may be left out, which the run no longer needs. A new run of a
// recipe without a name that comes out of a pipe needs `out`.
RunPlan plan_run(const Recipe& recipe, const std::string& out, const std::string& resume,
                 bool dry = false);

// Makes the directory, which held no run when it was planned, and takes its lock. Throws UsageError
// when that changed meanwhile.
std::unique_ptr<RunLock> begin_run(const std::string& directory);

// A recipe without `init` has that of the checkpoint that it continues in its resolved form: what
// the run writes says where it began.
void keep_recorded_init(Recipe& recipe, const Checkpoint& checkpoint);

// Whether the directory is a run of linnet: it has the mark or, of versions before the mark, a
// checkpoint or the environment of a run.
bool is_run(const std::string& directory);

// The recipe of a run in the directory that `out` and `resume` lead to: load_recipe_point, parsed;
// where `resume` names a run and `point` is empty, without the sweep, which earlier versions kept.
// When the recipe is refused while the run there was trained with a plugin that is not loaded, the
// refusal names the plugin.
Recipe load_recipe_of_run(const std::string& path, const std::vector<std::string>& overrides,
                          const std::string& point, const std::string& out,
                          const std::string& resume);

// The first setting (dotted path) in which two resolved recipes differ as far as a resume is
// concerned; "" when they agree.
std::string first_difference(const ConfigNode& a, const ConfigNode& b);

}  // namespace linnet
