// Which checkpoint is the best where best.json cannot say it.
#pragma once

#include <optional>
#include <string>

#include "recipes/engine/checkpoint_store.h"

namespace linnet {

// The best of the valid checkpoints by what each records of the evaluation of its step; of equal
// ones the earliest. `metric`: "nll", whose losses of ruined weights (soundness.h) do not count,
// "accuracy", or another, which none has. Empty when none was evaluated.
std::optional<BestCheckpoint> best_by_evaluations(const CheckpointStore& store,
                                                  const std::string& metric);

// The same by the metric that the recipe of the newest checkpoint names: for readers.
std::optional<BestCheckpoint> best_by_evaluations(const CheckpointStore& store);

// Whether every byte of the best checkpoint is verified.
enum class FindDamage { no, yes };

// For the writer of a run: where best.json is damaged, missing, or names a checkpoint that is not
// there (or is damaged, where that is looked for), it is written again by the evaluations of the
// checkpoints, or removed where none has one. Says so in the log.
void repair_best(CheckpointStore& store, const std::string& metric,
                 FindDamage find_damage = FindDamage::no);

}  // namespace linnet
