// Choices of slots on a CUDA device; slot_choices.cpp calls these with tensors of the right shapes.
#pragma once

#include "attention/common/abc/slot_choices.h"

namespace linnet::cuda {

// `controls` is zero before.
void one_hot_controls(const Tensor& choices, const Tensor& weights, const Tensor& controls);
void global_token_slots(const Tensor& positions, int64_t stride, const Tensor& out, int64_t slots);
void pooled_slots(const Tensor& mask, const Tensor& segments, const PooledSlots& out,
                  int64_t slots);
void random_slots(const RandomKey& key, const Tensor& examples, const Tensor& positions,
                  const Tensor& out, int64_t slots);

}  // namespace linnet::cuda
