// The best checkpoint, found from all of them.
#include "recipes/engine/best_repair.h"

#include <algorithm>
#include <cmath>

#include "core/files.h"
#include "core/log.h"
#include "core/yaml.h"
#include "recipes/engine/soundness.h"

namespace linnet {
namespace {

constexpr uint64_t kMaxRecipe = uint64_t{1} << 20;

// What a checkpoint records of the evaluation of its own step; empty when there was none, when it
// is that of ruined weights, or when its manifest is damaged.
std::optional<double> evaluation_of(const std::string& path, int64_t step,
                                    const std::string& metric) {
  try {
    const Checkpoint checkpoint = read_manifest_of(path);
    const JsonValue& evaluated = checkpoint.metadata.at("evaluated");
    const double value = evaluated.at(metric).number();
    const int64_t classes = checkpoint.metadata.at("classes").integer();
    const bool usable =
        metric == "nll"
            ? is_sound_loss(value,
                            classes > 0 ? classes : checkpoint.metadata.at("vocabulary").integer())
            : std::isfinite(value);
    if (evaluated.at("step").integer() == step && usable) return value;
  } catch (const Error&) {
    // It is no candidate.
  }
  return std::nullopt;
}

bool is_valid(const BestCheckpoint& checkpoint) {
  try {
    return verify_checkpoint(checkpoint.path).step == checkpoint.step;
  } catch (const Error&) {
    return false;
  }
}

// "none" when the checkpoint does not say.
std::string metric_of(const std::string& checkpoint) {
  try {
    const std::string path = join_path(checkpoint, "recipe.yaml");
    const ConfigNode recipe = parse_yaml(read_file(path, kMaxRecipe), path);
    const ConfigNode* section = recipe.find("checkpoint");
    const ConfigNode* best = section == nullptr ? nullptr : section->find("best");
    return best == nullptr ? "none" : best->raw();
  } catch (const Error&) {
    return "none";
  }
}

}  // namespace

std::optional<BestCheckpoint> best_by_evaluations(const CheckpointStore& store,
                                                  const std::string& metric) {
  if (metric != "nll" && metric != "accuracy") return std::nullopt;
  std::vector<BestCheckpoint> candidates;
  for (const int64_t step : store.steps()) {
    const std::string path = store.path_of(step);
    if (const auto value = evaluation_of(path, step, metric))
      candidates.push_back({path, step, metric, *value});
  }
  const bool more_is_better = metric == "accuracy";
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const BestCheckpoint& a, const BestCheckpoint& b) {
                     return more_is_better ? a.value > b.value : a.value < b.value;
                   });
  const auto found = std::find_if(candidates.begin(), candidates.end(), is_valid);
  return found == candidates.end() ? std::nullopt : std::optional(*found);
}

std::optional<BestCheckpoint> best_by_evaluations(const CheckpointStore& store) {
  const std::vector<int64_t> steps = store.steps();
  if (steps.empty()) return std::nullopt;
  return best_by_evaluations(store, metric_of(store.path_of(steps.back())));
}

void repair_best(CheckpointStore& store, const std::string& metric, FindDamage find_damage) {
  std::string reason;
  try {
    const auto named = store.best();
    const bool there = named && exists(named->path);
    if (there && (find_damage == FindDamage::no || is_valid(*named))) return;
    if (named) {
      reason = concat("best.json names ", named->path,
                      there ? ", which is damaged" : ", which is not there");
    }
  } catch (const Error& error) {
    reason = error.what();
  }
  const auto best = best_by_evaluations(store, metric);
  if (best) {
    store.mark_best(best->step, best->metric, best->value);
    log_warning(reason.empty() ? "best.json names no checkpoint" : reason,
                "; by the evaluations of the checkpoints, the best is that of step ", best->step,
                ", which best.json names from now on");
  } else if (!reason.empty()) {
    store.forget_best();
    log_warning(reason, "; no other checkpoint has an evaluation, so there is no best one");
  }
}

}  // namespace linnet
