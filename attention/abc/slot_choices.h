// Which slot a token is written to, where it goes to one slot or none: by position, by pooling, by
// chance; and the control that says so.
#pragma once

#include "autograd/dropout.h"
#include "core/random.h"
#include "core/tensor.h"

namespace linnet {

// The control f32 [B,S,heads,slots] of tokens that go to slot choices[b,s,h] (i32 [B,S,heads], or
// [B,S,1] for all heads alike; -1: none): `weights` [B,S] f32, or 1 where undefined, in that slot
// and 0 in others.
Tensor one_hot_controls(const Tensor& choices, const Tensor& weights, int64_t heads, int64_t slots);

// Every stride-th position has a slot of its own, until all are taken: i32 [B,S,1] from positions
// i32 [B,S].
Tensor global_token_slots(const Tensor& positions, int64_t stride, int64_t slots);

// Slot floor(j slots / n) for the valid token number j of the n in its segment.
struct PooledSlots {
  Tensor slots;    // i32 [B,S,1]; -1: padded
  Tensor weights;  // f32 [B,S]: slots / n
};
PooledSlots pooled_slots(const Tensor& mask, const Tensor& segments, int64_t B, int64_t S,
                         int64_t slots, Device device);

// A slot drawn uniformly for every head of a token, i32 [B,S,heads]: the same for the same key,
// example and position (i32 [B,S]) on every device.
Tensor random_slots(const RandomKey& key, const DrawPlace& place, const Tensor& positions,
                    int64_t heads, int64_t slots);

}  // namespace linnet
