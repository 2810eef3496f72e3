#include "recipes/engine/run_directory.h"

#include <algorithm>
#include <array>

#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/yaml.h"
#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/plugin_record.h"
#include "recipes/engine/recipe_name.h"
#include "recipes/engine/without_effect.h"

namespace linnet {
namespace {

// Settings that a resumed run may change. They do not change what an update computes, but for the
// rounding of another micro-batch, and for train.max_steps where a schedule takes its length from
// it (of which the run warns).
constexpr std::array<std::string_view, 20> kFree{"name",
                                                 "description",
                                                 "evaluate",
                                                 "checkpoint",
                                                 "generate",
                                                 "sweep",
                                                 "published",
                                                 "train.max_steps",
                                                 "train.max_tokens",
                                                 "train.max_minutes",
                                                 "train.max_epochs",
                                                 "train.log_every_steps",
                                                 "train.max_nonfinite_steps",
                                                 "train.micro_batch",
                                                 "train.recompute",
                                                 "train.cuda_graph",
                                                 "train.backend",
                                                 "train.bucket_mib",
                                                 "train.shard_optimizer",
                                                 "data.cache"};

bool is_free(const std::string& path) {
  return std::find(kFree.begin(), kFree.end(), path) != kFree.end();
}

constexpr uint64_t kMaxEnvironment = uint64_t{1} << 20;

// By what versions before the mark left.
bool is_earlier_run(const std::string& directory) {
  const CheckpointStore store(directory);
  for (const int64_t step : store.steps()) {
    if (is_checkpoint(store.path_of(step))) return true;
  }
  const std::string path = join_path(directory, "environment.json");
  if (!exists(path)) return false;
  try {
    const JsonValue environment = parse_json(read_file(path, kMaxEnvironment), path);
    return environment.find("linnet") != nullptr && environment.find("machine") != nullptr;
  } catch (const Error&) {  // another program's
    return false;
  }
}

// A name in a directory without a run that a run there would be mixed with; "" for none. Runs
// beside it, the points of a sweep, are not, nor is a mark that was cut short.
std::string other_entry(const std::string& directory) {
  if (!is_directory(directory)) return "";
  for (const std::string& name : file_system().list(directory)) {
    const std::string path = join_path(directory, name);
    if (is_directory(path) && is_run(path)) continue;
    if (name == kRunLockFile && has_unfinished_mark(directory)) continue;
    return is_run(directory) ? "" : name;  // another trainer may have begun one just now
  }
  return "";
}

void require_no_other_files(const std::string& directory) {
  const std::string entry = other_entry(directory);
  require_usage(
      entry.empty(), Cause{ErrorCode::conflict, "--out", directory}, directory,
      " is no run of linnet and holds other files (", entry,
      "), which a run could overwrite; choose a new or empty directory with --out, or move ", entry,
      " out of it (a log that is redirected into it, too: the run keeps one in its "
      "own log.txt)");
}

std::optional<std::string> newest(const std::string& directory) {
  const NewestCheckpoint found = CheckpointStore(directory).newest_valid();
  for (const SkippedCheckpoint& skipped : found.skipped) {
    log_warning("checkpoint ", skipped.path, " is skipped: ", skipped.reason);
  }
  require(found.path.has_value() || found.skipped.empty(),
          Cause{ErrorCode::malformed, "", directory}, "no checkpoint in ", directory,
          " is valid, so its run cannot continue; restart with another --out, or delete ",
          join_path(directory, "checkpoints"));
  return found.path;
}

// What the run began from; null where that is nothing.
ConfigNode recorded_init(const ConfigNode& recipe) {
  const ConfigNode* init = recipe.is_map() ? recipe.find("init") : nullptr;
  return init == nullptr ? ConfigNode() : *init;
}

void require_same_recipe(const Recipe& recipe, const std::string& checkpoint) {
  const std::string path = join_path(checkpoint, "recipe.yaml");
  ConfigNode before = parse_yaml(read_file(path), path);
  try {
    // A key that is newer than the checkpoint has its default on both sides.
    before = parse_recipe(before).resolved;
  } catch (const UsageError&) {
    // Not a recipe of this version, or of these plugins: compared as it stands.
  }
  ConfigNode now = recipe.resolved;
  if (!recipe.init) now.set("init", recorded_init(before));
  const std::string changed = first_difference(now, before);
  require_usage(changed.empty(), Cause{ErrorCode::conflict, changed, checkpoint}, "the run in ",
                parent_path(parent_path(checkpoint)), " was made with another recipe ('", changed,
                "' differs); choose another directory with --out");
}

}  // namespace

std::string default_directory(const std::string& recipe_name, const std::string& recipe_path,
                              const std::string& recipe_point) {
  std::string name = recipe_name.empty() ? file_name(recipe_path) : recipe_name;
  if (name.ends_with(".yaml")) name.resize(name.size() - 5);
  const std::string directory = join_path("runs", is_plain_name(name) ? name : "run");
  return recipe_point.empty() ? directory : join_path(directory, folder_of_point(recipe_point));
}

std::string first_difference(const ConfigNode& a, const ConfigNode& b) {
  return difference_apart_from(a, b, "", is_free);
}

Recipe load_recipe_of_run(const std::string& path, const std::vector<std::string>& overrides,
                          const std::string& point, const std::string& out,
                          const std::string& resume) {
  std::vector<std::string> changes = overrides;
  // A run that is named for resuming is one run. Earlier versions kept the sweep in its recipe.
  const bool named = resume != "auto" && resume != "never";
  const auto sets_sweep = [](const std::string& text) {
    return parse_override(text).path[0] == "sweep";
  };
  if (named && point.empty() && std::none_of(overrides.begin(), overrides.end(), sets_sweep)) {
    changes.emplace_back("sweep=null");
  }
  const ConfigNode node = load_recipe_point(path, changes, point).node;
  try {
    Recipe recipe = parse_recipe(node);
    recipe.path = path;
    recipe.point = point;
    for (const std::string& note : restart_notes(node)) log_info(note);
    return recipe;
  } catch (const UsageError&) {
    if (resume == "never") throw;
    const ConfigNode* name = node.is_map() ? node.find("name") : nullptr;
    const std::string text = name != nullptr && name->is_scalar() ? name->raw() : "";
    const std::string directory = resume != "auto" ? resume
                                  : out.empty()    ? default_directory(text, path, point)
                                                   : out;
    std::optional<Checkpoint> checkpoint;
    try {
      const NewestCheckpoint newest = CheckpointStore(directory).newest_valid();
      if (newest.path) checkpoint = load_checkpoint(*newest.path);
    } catch (const Error&) {
      // The error in the recipe is thrown below.
    }
    if (checkpoint) require_plugins(*checkpoint);
    throw;
  }
}

void keep_recorded_init(Recipe& recipe, const Checkpoint& checkpoint) {
  if (recipe.init) return;
  const auto file = checkpoint.files.find("recipe.yaml");
  if (file == checkpoint.files.end()) return;
  ConfigNode init =
      recorded_init(parse_yaml(file->second, join_path(checkpoint.path, "recipe.yaml")));
  if (!init.is_null()) recipe.resolved.set("init", std::move(init));
}

bool is_run(const std::string& directory) {
  return is_marked_as_run(directory) || is_earlier_run(directory);
}

std::unique_ptr<RunLock> begin_run(const std::string& directory) {
  create_directories(directory);
  if (!is_run(directory)) require_no_other_files(directory);
  auto lock = std::make_unique<RunLock>(directory);
  require_usage(!lock->marked_before(), Cause{ErrorCode::conflict, "--out", directory},
                "another trainer began a run in ", directory,
                " while this one was starting; choose another directory with --out, or start again "
                "to continue that run");
  return lock;
}

RunPlan plan_run(const Recipe& recipe, const std::string& out, const std::string& resume,
                 bool dry) {
  // Nothing may change between what is found there and what is made of it.
  const auto lock = [dry](const std::string& directory) {
    return dry ? nullptr : std::make_unique<RunLock>(directory);
  };
  if (resume != "auto" && resume != "never") {
    RunPlan plan{resume, std::nullopt, nullptr};
    if (is_run(resume)) {
      plan.lock = lock(resume);
      plan.checkpoint = newest(resume);
    }
    require_usage(plan.checkpoint.has_value(), Cause{ErrorCode::not_found, "--resume", resume},
                  "--resume must be auto, never or a run directory with "
                  "a checkpoint, found '",
                  resume, "', which ", exists(resume) ? "has none" : "does not exist");
    require_usage(out.empty() || out == resume, Cause{ErrorCode::conflict, "--out", out}, "--out ",
                  out, " and --resume ", resume, " name different run directories; give one");
    require_same_recipe(recipe, *plan.checkpoint);
    return plan;
  }
  if (out.empty()) require_plain_name(recipe.resolved);
  require_usage(!out.empty() || !recipe.name.empty() || !is_descriptor(recipe.path),
                Cause{ErrorCode::missing_key, "name", recipe.path}, "the recipe comes out of ",
                recipe.path,
                " and has no 'name', so its run has none: give --out DIR, or name=NAME in the "
                "recipe or as an override");
  RunPlan plan{out.empty() ? default_directory(recipe.name, recipe.path, recipe.point) : out,
               std::nullopt, nullptr};
  if (resume == "never") {
    require_usage(
        out.empty() || !is_run(out), Cause{ErrorCode::conflict, "--out", out}, "--out ", out,
        " already holds a run; choose another directory, or --resume auto to continue it");
    const std::string base = plan.directory;
    const auto taken = [&] {
      return is_run(plan.directory) || !other_entry(plan.directory).empty();
    };
    for (int i = 2; out.empty() && taken(); ++i) plan.directory = concat(base, "-", i);
  }
  if (resume == "auto" && is_run(plan.directory)) {
    plan.lock = lock(plan.directory);
    plan.checkpoint = newest(plan.directory);
    if (plan.checkpoint) require_same_recipe(recipe, *plan.checkpoint);
  } else {
    require_no_other_files(plan.directory);
  }
  return plan;
}

}  // namespace linnet
