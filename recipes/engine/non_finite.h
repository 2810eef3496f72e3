// What made an update not finite.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/train_step.h"

namespace linnet {

// Why update number `step`, made of these micro-batches, has a gradient or loss that is not finite,
// in words for a message: the parameter that holds such a value, else the first layer whose output
// has one, else the loss, else the parameter whose gradient the backward pass computed first; ""
// where nothing is found. Computes the forward passes again.
std::string origin_of_non_finite(const TrainParts& parts, const std::vector<Batch>& batches,
                                 int64_t step);

}  // namespace linnet
