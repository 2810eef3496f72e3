// Rows of states between parts of features and the whole.
#include "attention/primitives/linear_attention/cuda/fast_parts.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

// Between an array of the whole and that of a part, of `width` values per row.
void copy_rows(const StateRows& rows, const float* from, float* to, int64_t width, bool to_whole) {
  const int64_t own = rows.features(), all = rows.whole.features();
  const int64_t half = rows.columns.width, first = rows.columns.first,
                skipped = rows.whole.width - half;
  const auto copy = [=] __device__(int64_t i) {
    const int64_t row = i / width % own, state = i / width / own;
    const int64_t feature = first + row + (row < half ? 0 : skipped);
    const int64_t at = (state * all + feature) * width + i % width;
    to[to_whole ? at : i] = from[to_whole ? i : at];
  };
  for_each("linear_attention_fast_part_states", rows.states * own * width, copy);
}

// Room for such an array; undefined where it is not wanted.
Tensor room_for(const StateRows& rows, bool wanted, const Shape& shape) {
  return wanted ? Tensor::empty(shape, DType::f32, rows.device) : Tensor();
}
PartState room_of(const StateRows& rows, bool memory, bool mass) {
  return {room_for(rows, memory, {rows.states, rows.features(), rows.values}),
          room_for(rows, mass, {rows.states, rows.features()})};
}

}  // namespace

PartState StateRows::take(const LinearAttentionState<const float>& whole) const {
  const PartState part = room_of(*this, whole.memory != nullptr, whole.mass != nullptr);
  const LinearAttentionState<float> to = part.pointers<float>();
  if (to.memory != nullptr) copy_rows(*this, whole.memory, to.memory, values, false);
  if (to.mass != nullptr) copy_rows(*this, whole.mass, to.mass, 1, false);
  return part;
}

PartState StateRows::room(const LinearAttentionState<float>& whole) const {
  return room_of(*this, whole.memory != nullptr, whole.mass != nullptr);
}

void StateRows::put(const PartState& part, const LinearAttentionState<float>& whole) const {
  const LinearAttentionState<const float> from = part.pointers<const float>();
  if (from.memory != nullptr) copy_rows(*this, from.memory, whole.memory, values, true);
  if (from.mass != nullptr) copy_rows(*this, from.mass, whole.mass, 1, true);
}

}  // namespace linnet::cuda::linear_attention_fast
