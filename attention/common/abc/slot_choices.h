// Slots of tokens that are written to one slot or none: by position, by pooling, by chance; and the
// control tensor of such a choice.
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace linnet {

// The control [B,S,heads,slots] of tokens that go to slot choices[b,s,h] (i32 [B,S,heads], or
// [B,S,1] for all heads alike; -1: none): 1 in that slot and 0 in others, f32, or on a CUDA device
// bf16 where `tokens` is; or `weights` [B,S] instead of 1, in their dtype. Throws UsageError for
// slots that do not exist; a CUDA device, which would have to synchronize to check them, writes
// nothing.
Tensor one_hot_controls(const Tensor& choices, const Tensor& weights, int64_t heads, int64_t slots,
                        DType tokens = DType::f32);

// Every stride-th position has a slot of its own, until all are taken: i32 [B,S,1] from positions
// i32 [B,S].
Tensor global_token_slots(const Tensor& positions, int64_t stride, int64_t slots);

// Slot floor(j slots / n) for the valid token number j of the n in its segment.
struct PooledSlots {
  Tensor slots;    // i32 [B,S,1]; -1: padded
  Tensor weights;  // [B,S]: slots / n, f64 on the CPU, f32 on a CUDA device
};
PooledSlots pooled_slots(const Tensor& mask, const Tensor& segments, int64_t B, int64_t S,
                         int64_t slots, Device device);

// A slot drawn uniformly for every head of a token, i32 [B,S,heads]: the same for the same key,
// example (i64 [B]; undefined: 0) and position (i32 [B,S]) on every device.
Tensor random_slots(const RandomKey& key, const Tensor& examples, const Tensor& positions,
                    int64_t heads, int64_t slots);

}  // namespace linnet
