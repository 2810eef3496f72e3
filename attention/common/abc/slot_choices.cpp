#include "attention/common/abc/slot_choices.h"

#include <algorithm>
#include <vector>

#include "attention/common/abc/cuda/slot_choices.h"
#include "attention/common/abc/drawn_slot.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet {

Tensor one_hot_controls(const Tensor& choices, const Tensor& weights, int64_t heads, int64_t slots,
                        DType tokens) {
  const int64_t B = choices.size(0), S = choices.size(1), per_token = choices.size(2);
  require(per_token == 1 || per_token == heads, "one_hot_controls: expected choices for 1 or ",
          heads, " heads, got ", choices.shape());
  const bool narrow = tokens == DType::bf16 && choices.device().kind == DeviceKind::cuda;
  const DType dtype = weights.defined() ? weights.dtype() : narrow ? DType::bf16 : DType::f32;
  const Tensor controls = Tensor::zeros({B, S, heads, slots}, dtype, choices.device());
  if constexpr (kCuda) {
    if (on_cuda(choices)) {
      cuda::one_hot_controls(choices, weights, controls);
      return controls;
    }
  }
  for (int64_t i = 0; i < B * S * heads; ++i) {
    const int64_t token = i / heads;
    const int32_t slot = choices.data<int32_t>()[per_token == 1 ? token : i];
    require_usage(slot < slots, "slot ", slot, " does not exist: there are ", slots,
                  ", numbered from 0");
    if (slot < 0) continue;
    if (weights.defined()) {
      controls.data<double>()[i * slots + slot] = weights.data<double>()[token];
    } else {
      controls.data<float>()[i * slots + slot] = 1;
    }
  }
  return controls;
}

Tensor global_token_slots(const Tensor& positions, int64_t stride, int64_t slots) {
  const Tensor out =
      Tensor::empty({positions.size(0), positions.size(1), 1}, DType::i32, positions.device());
  if constexpr (kCuda) {
    if (on_cuda(positions)) {
      cuda::global_token_slots(positions, stride, out, slots);
      return out;
    }
  }
  for (int64_t i = 0; i < positions.elements(); ++i) {
    const int64_t position = positions.data<int32_t>()[i], slot = position / stride;
    const bool has_one = position % stride == 0 && slot < slots;
    out.data<int32_t>()[i] = has_one ? static_cast<int32_t>(slot) : -1;
  }
  return out;
}

PooledSlots pooled_slots(const Tensor& mask, const Tensor& segments, int64_t B, int64_t S,
                         int64_t slots, Device device) {
  const DType dtype = device.kind == DeviceKind::cuda ? DType::f32 : DType::f64;
  const PooledSlots out{Tensor::empty({B, S, 1}, DType::i32, device),
                        Tensor::empty({B, S}, dtype, device)};
  if constexpr (kCuda) {
    if (on_cuda(out.slots)) {
      cuda::pooled_slots(mask, segments, out, slots);
      return out;
    }
  }
  const auto valid = [&](int64_t token) {
    return !mask.defined() || mask.data<uint8_t>()[token] != 0;
  };
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t begin = 0, end = 0; begin < S; begin = end) {
      int64_t count = 0;
      for (end = begin; end < S; ++end) {
        const int64_t token = b * S + end;
        const bool changes = segments.defined() && end > begin &&
                             segments.data<int32_t>()[token] != segments.data<int32_t>()[token - 1];
        if (changes) break;
        if (valid(token)) ++count;
      }
      int64_t number = 0;
      for (int64_t token = b * S + begin; token < b * S + end; ++token) {
        const bool written = valid(token);
        out.slots.data<int32_t>()[token] =
            written ? static_cast<int32_t>(number++ * slots / count) : -1;
        out.weights.data<double>()[token] =
            written ? static_cast<double>(slots) / static_cast<double>(count) : 0.0;
      }
    }
  }
  return out;
}

Tensor random_slots(const RandomKey& key, const Tensor& examples, const Tensor& positions,
                    int64_t heads, int64_t slots) {
  const int64_t B = positions.size(0), S = positions.size(1);
  const Tensor out = Tensor::empty({B, S, heads}, DType::i32, positions.device());
  if constexpr (kCuda) {
    if (on_cuda(positions)) {
      cuda::random_slots(key, examples, positions, out, slots);
      return out;
    }
  }
  for (int64_t i = 0; i < out.elements(); ++i) {
    const int64_t token = i / heads;
    const int64_t example = examples.defined() ? examples.data<int64_t>()[token / S] : 0;
    out.data<int32_t>()[i] =
        drawn_slot(key, example, positions.data<int32_t>()[token], i % heads, heads, slots);
  }
  return out;
}

}  // namespace linnet
