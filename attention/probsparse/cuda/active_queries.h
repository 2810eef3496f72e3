// The kernels of active_queries (attention/probsparse/active_queries.h) on a CUDA device.
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace linnet::cuda {

// i32 [B,T] and [B] of mask u8 [B,T].
void valid_tokens(const Tensor& mask, const Tensor& places, const Tensor& counts);

// Inputs of the ranking: q, k f32; the mask of queries, places and counts of valid keys, counts of
// valid queries and draws may be undefined.
struct ActiveQueries {
  Tensor q, k, mask, places, counts, query_counts, draws;
  RandomKey key;
  int64_t factor;
};
// f32 [B,H,T], ascending.
void rank_queries(const ActiveQueries& all, const Tensor& ranking);
// active i32 [B,H,most] of the order i32 [B,H,T] of that ranking.
void take_active(const ActiveQueries& all, const Tensor& order, const Tensor& active);

}  // namespace linnet::cuda
