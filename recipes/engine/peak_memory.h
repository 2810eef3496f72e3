// The most memory that a run will hold, found by doing once what it does again and again.
#pragma once

#include <cstdint>
#include <optional>

#include "recipes/engine/train_step.h"

namespace linnet {

// Bytes at the peak.
struct PeakMemory {
  int64_t tensors = 0;   // held by tensors on the model's device
  int64_t resident = 0;  // of the process, in the machine's memory, since it began
};

// After the update that begins at `progress`, whose TrainStep is gone: makes it again with the
// largest micro-batch, where its first one was smaller or a device has graphs to capture, scores
// the largest batch of the validation, if the recipe asks for one, and packs a checkpoint. The
// weights are of no use afterwards. `updates` are left in the run, at least 1; empty: as many as an
// epoch has. A state that is carried through a document (evaluate.carry_state) counts as large as
// one batch leaves it.
PeakMemory find_peak_memory(const TrainParts& parts, Progress progress,
                            std::optional<int64_t> updates);

}  // namespace linnet
