// Reformer's places and rounds on a CUDA device; rounds.cpp calls these.
#pragma once

#include "attention/reformer/chunks.h"
#include "attention/reformer/round_rule.h"

namespace linnet {

// Soft-maxes over the keys of each round, or their gradients.
struct RoundTensors {
  Tensor y;       // [B,N,H,V]
  Tensor sums;    // [B,N,H]: log-sum-exp
  Tensor shares;  // [B,N,H]: zeros until they are known
  Tensor v;       // [B,T,H,V]: what tokens have that see nothing
};

// at(tensor): where its elements are.
template <typename At>
RoundRule round_rule(const Chunks& chunks, const At& at) {
  const Tensor &order = chunks.order, &places = chunks.places;
  return {places.size(3), places.size(1), places.size(2), order.size(2), at(order), at(places)};
}

}  // namespace linnet

namespace linnet::cuda {

// y [B,N,H,K] of x [B,T,H,K], both f32 or bf16, and dx of dy.
void take_places(const Tensor& x, const Chunks& chunks, const Tensor& y);
void take_places_backward(const Tensor& dy, const Chunks& chunks, const Tensor& dx);

// y [B,T,H,V] and in.shares; d.v, and d.y and d.sums, both zeros before. y, v and their gradients
// are f32 or bf16, sums and shares f32.
void join_rounds(const RoundTensors& in, const Chunks& chunks, const Tensor& y);
void join_rounds_backward(const RoundTensors& in, const Chunks& chunks, const Tensor& dy,
                          const RoundTensors& d);

}  // namespace linnet::cuda
