#include "attention/common/abc/cuda/slot_choices.h"

#include "attention/common/abc/drawn_slot.h"
#include "core/cuda/for_each.h"
#include "core/cuda/random.h"

namespace linnet::cuda {

void one_hot_controls(const Tensor& choices, const Tensor& weights, const Tensor& controls) {
  const int64_t heads = controls.size(2), slots = controls.size(3), per_token = choices.size(2);
  const int32_t* from = pointer<int32_t>(choices);
  const float* weight = pointer_or_null<float>(weights);
  const bool narrow = controls.dtype() == DType::bf16;
  float* to = narrow ? nullptr : pointer<float>(controls);
  kernel_bf16* narrow_to = narrow ? pointer<kernel_bf16>(controls) : nullptr;
  for_each("one_hot_controls", controls.elements() / slots, [=] __device__(int64_t i) {
    const int64_t token = i / heads;
    const int32_t slot = from[per_token == 1 ? token : i];
    if (slot < 0 || slot >= slots) return;
    const float value = weight != nullptr ? weight[token] : 1.0f;
    if (to != nullptr) {
      to[i * slots + slot] = value;
    } else {
      store(narrow_to + i * slots + slot, value);
    }
  });
}

void global_token_slots(const Tensor& positions, int64_t stride, const Tensor& out, int64_t slots) {
  const int32_t* from = pointer<int32_t>(positions);
  int32_t* to = pointer<int32_t>(out);
  for_each("global_token_slots", positions.elements(), [=] __device__(int64_t i) {
    const int64_t position = from[i], slot = position / stride;
    to[i] = position % stride == 0 && slot < slots ? static_cast<int32_t>(slot) : -1;
  });
}

// One thread per row: counts the valid tokens of a segment, then numbers them.
void pooled_slots(const Tensor& mask, const Tensor& segments, const PooledSlots& out,
                  int64_t slots) {
  const int64_t S = out.weights.size(1);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  const int32_t* ids = pointer_or_null<int32_t>(segments);
  int32_t* chosen = pointer<int32_t>(out.slots);
  float* weights = pointer<float>(out.weights);
  for_each("pooled_slots", out.weights.size(0), [=] __device__(int64_t b) {
    int64_t begin = b * S;
    while (begin < (b + 1) * S) {
      int64_t end = begin, count = 0;
      for (; end < (b + 1) * S; ++end) {
        if (ids != nullptr && end > begin && ids[end] != ids[end - 1]) break;
        if (valid == nullptr || valid[end] != 0) ++count;
      }
      int64_t number = 0;
      for (int64_t token = begin; token < end; ++token) {
        const bool written = valid == nullptr || valid[token] != 0;
        chosen[token] = written ? static_cast<int32_t>(number * slots / count) : -1;
        weights[token] = written ? static_cast<float>(slots) / static_cast<float>(count) : 0.0f;
        if (written) ++number;
      }
      begin = end;
    }
  });
}

void random_slots(const RandomKey& key, const Tensor& examples, const Tensor& positions,
                  const Tensor& out, int64_t slots) {
  const int64_t S = positions.size(1), heads = out.size(2);
  const int32_t* position = pointer<int32_t>(positions);
  const int64_t* example = pointer_or_null<int64_t>(examples);
  int32_t* to = pointer<int32_t>(out);
  for_each("random_slots", out.elements(), [=] __device__(int64_t i) {
    const int64_t token = i / heads;
    to[i] = drawn_slot(key_of_step(key), example != nullptr ? example[token / S] : 0,
                       position[token], i % heads, heads, slots);
  });
}

}  // namespace linnet::cuda
