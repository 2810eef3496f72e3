// Rows of states between parts of features and the whole.
#include "attention/primitives/cuda/linear_attention_fast_parts.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda::linear_attention_fast {

Tensor StateRows::empty(bool wanted, int64_t width) const {
  return wanted ? Tensor::empty({states, features(), width}, DType::f32, device) : Tensor();
}

// Arrays of `width` numbers a row.
void StateRows::copy(const float* from, float* to, int64_t width, bool to_whole) const {
  const int64_t own = features(), all = reweighted ? 2 * K : K;
  const int64_t half = columns.width, first = columns.first, skipped = K - columns.width;
  for_each("linear_attention_fast_part_states", states * own * width, [=] __device__(int64_t i) {
    const int64_t row = i / width % own, state = i / width / own;
    const int64_t feature = first + row + (row < half ? 0 : skipped);
    const int64_t at = (state * all + feature) * width + i % width;
    to[to_whole ? at : i] = from[to_whole ? i : at];
  });
}

PartState StateRows::take(const LinearAttentionState<const float>& whole) const {
  const PartState part{empty(whole.memory != nullptr, values), empty(whole.mass != nullptr, 1)};
  const LinearAttentionState<float> to = part.pointers();
  if (to.memory != nullptr) copy(whole.memory, to.memory, values, false);
  if (to.mass != nullptr) copy(whole.mass, to.mass, 1, false);
  return part;
}

PartState StateRows::room(const LinearAttentionState<float>& whole) const {
  return {empty(whole.memory != nullptr, values), empty(whole.mass != nullptr, 1)};
}

void StateRows::put(const PartState& part, const LinearAttentionState<float>& whole) const {
  const LinearAttentionState<const float> from = part.reads();
  if (from.memory != nullptr) copy(from.memory, whole.memory, values, true);
  if (from.mass != nullptr) copy(from.mass, whole.mass, 1, true);
}

}  // namespace linnet::cuda::linear_attention_fast
