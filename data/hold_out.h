// A validation split taken out of the training examples.
#pragma once

#include <cstdint>
#include <utility>

#include "core/config.h"
#include "data/classification.h"

namespace linnet {

// Of kinds that hold validation out of the training examples where the files have none.
struct HoldOutOptions {
  double validation_fraction = 0.1;
  int64_t seed = 1;
  static void describe(ConfigDescription<HoldOutOptions>& d);
};

// Moves round(fraction x size) examples, at least one, into the second split: the last ones of a
// permutation of `seed`, or with in_order the last ones as they come. Both keep the order that the
// examples had.
std::pair<ClassificationSplit, ClassificationSplit> hold_out(const ClassificationSplit& whole,
                                                             double fraction, int64_t seed,
                                                             bool in_order);

}  // namespace linnet
