// What made an update not finite.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/train_step.h"

namespace linnet {

// Why the update at `progress`, in micro-batches of these sizes, has a gradient or loss that is not
// finite, in words for a message: the parameter that holds such a value, else the first layer whose
// output has one, else the loss, else the parameter whose gradient the backward pass computed
// first; "" where nothing is found. Makes the batches, and computes the forward passes, again.
std::string origin_of_non_finite(const TrainParts& parts,
                                 const std::vector<ExampleRange>& micro_batches,
                                 const Progress& progress);

}  // namespace linnet
