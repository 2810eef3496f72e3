// Dropout by counter: the mask of an element is a function of (seed, step, site, example, time,
// channel), so that nothing is stored and recomputation, resuming and other devices see the same
// one.
#pragma once

#include "autograd/variable.h"
#include "core/random.h"

namespace linnet {

// Where in the data a batch lies: keys of random draws.
struct DrawPlace {
  // Global example number of every batch row, i64 [B] on the device of the model.
  Tensor examples;
  // Time of the first token of the batch inside its example (decoding from a state: > 0).
  int64_t time_offset = 0;
};

struct DropoutSpec {
  double probability = 0;  // 0 switches it off; must be in [0, 1)
  RandomKey key;
  DrawPlace place;
};

// x [B, T, C] with elements zeroed with the given probability, the others scaled by 1/(1-p).
Variable dropout(const Variable& x, const DropoutSpec& spec);

// residual + dropout(branch), both [B, T, C]: one pass.
Variable residual_dropout(const Variable& residual, const Variable& branch,
                          const DropoutSpec& spec);

// The factor 1/(1-p) of kept elements, and the limit: an element whose word lies below is dropped.
float dropout_scale(double probability);
uint32_t dropout_limit(double probability);

// The factors (0 or 1/(1-p)) of one row of channels. Channel c uses word c % 4 of
// key.words(random_element(example, time, c / 4, groups)) with groups = channels / 4 rounded up,
// and is dropped when that word is below p * 2^32.
void dropout_row(const DropoutSpec& spec, int64_t example, int64_t time, int64_t channels,
                 float* factors);

}  // namespace linnet
