#include "recipes/engine/run_directory.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/files.h"
#include "core/log.h"
#include "core/yaml.h"
#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/plugin_record.h"

namespace linnet {
namespace {

// Settings that a resumed run may change. They do not change what an update computes, but for the
// rounding of another micro-batch, and for train.max_steps where a schedule takes its length from
// it (of which the run warns).
constexpr std::array<std::string_view, 18> kFree{"name",
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
                                                 "data.cache"};

std::string difference(const ConfigNode& a, const ConfigNode& b, const std::string& path) {
  if (std::find(kFree.begin(), kFree.end(), path) != kFree.end() || a == b) return "";
  if (!a.is_map() || !b.is_map()) return path;
  std::set<std::string> keys;
  for (const std::string& key : a.keys()) keys.insert(key);
  for (const std::string& key : b.keys()) keys.insert(key);
  for (const std::string& key : keys) {
    const std::string inner = path.empty() ? key : path + "." + key;
    const ConfigNode* left = a.find(key);
    const ConfigNode* right = b.find(key);
    const ConfigNode absent;
    std::string found =
        difference(left != nullptr ? *left : absent, right != nullptr ? *right : absent, inner);
    if (!found.empty()) return found;
  }
  return "";
}

std::string default_directory(const std::string& recipe_name, const std::string& recipe_path,
                              const std::string& recipe_point) {
  std::string name = recipe_name.empty() ? file_name(recipe_path) : recipe_name;
  if (name.ends_with(".yaml")) name.resize(name.size() - 5);
  const std::string directory = join_path("runs", name.empty() ? "run" : name);
  if (recipe_point.empty()) return directory;
  std::string folder = recipe_point;  // a value may be a path
  std::replace(folder.begin(), folder.end(), '/', '_');
  return join_path(directory, folder);
}

bool holds_run(const std::string& directory) {
  return exists(join_path(directory, "recipe.yaml")) || exists(join_path(directory, "checkpoints"));
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

void require_same_recipe(const Recipe& recipe, const std::string& checkpoint) {
  const std::string path = join_path(checkpoint, "recipe.yaml");
  ConfigNode before = parse_yaml(read_file(path), path);
  try {
    // A key that is newer than the checkpoint has its default on both sides.
    before = parse_recipe(before).resolved;
  } catch (const UsageError&) {
    // Not a recipe of this version, or of these plugins: compared as it stands.
  }
  const std::string changed = first_difference(recipe.resolved, before);
  require_usage(changed.empty(), Cause{ErrorCode::conflict, changed, checkpoint}, "the run in ",
                parent_path(parent_path(checkpoint)), " was made with another recipe ('", changed,
                "' differs); choose another directory with --out");
}

}  // namespace

std::string first_difference(const ConfigNode& a, const ConfigNode& b) {
  return difference(a, b, "");
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

RunPlan plan_run(const Recipe& recipe, const std::string& out, const std::string& resume) {
  if (resume != "auto" && resume != "never") {
    RunPlan plan{resume, newest(resume)};
    require_usage(plan.checkpoint.has_value(), Cause{ErrorCode::not_found, "--resume", resume},
                  "--resume must be auto, never or a run directory with "
                  "a checkpoint, found '",
                  resume, "', which ", exists(resume) ? "has none" : "does not exist");
    require_usage(out.empty() || out == resume, Cause{ErrorCode::conflict, "--out", out}, "--out ",
                  out, " and --resume ", resume, " name different run directories; give one");
    require_same_recipe(recipe, *plan.checkpoint);
    return plan;
  }
  RunPlan plan{out.empty() ? default_directory(recipe.name, recipe.path, recipe.point) : out,
               std::nullopt};
  if (resume == "never") {
    require_usage(
        out.empty() || !holds_run(out), Cause{ErrorCode::conflict, "--out", out}, "--out ", out,
        " already holds a run; choose another directory, or --resume auto to continue it");
    const std::string base = plan.directory;
    for (int i = 2; holds_run(plan.directory); ++i) plan.directory = concat(base, "-", i);
    return plan;
  }
  if (exists(join_path(plan.directory, "checkpoints"))) plan.checkpoint = newest(plan.directory);
  if (plan.checkpoint) require_same_recipe(recipe, *plan.checkpoint);
  return plan;
}

}  // namespace linnet
