// The queries that ProbSparse attention answers exactly: the most outstanding ones over sampled
// keys.
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace linnet {

// c ceil(ln n), at least 1 and at most n: the keys sampled for a query of n valid keys, and the
// queries that are answered exactly of n valid ones.
int64_t probsparse_count(int64_t n, int64_t factor);

// Draws in [0, 1), f64 [T,probsparse_count(S)] on the host, which choose the sampled keys of S.
Tensor probsparse_draws(const RandomKey& key, int64_t T, int64_t S, int64_t factor);

// u8 [B,T] and [B,S], 1 = valid; undefined: all.
struct ProbsparseMasks {
  Tensor queries, keys;
};
// i32 [B,H,probsparse_count(T)] on the device of q: the most outstanding queries of every head, the
// most outstanding first (of equals the earlier); -1 after them where padding leaves fewer. M_i =
// max - sum / n of the products of q_i with keys sampled with replacement from the n valid ones,
// summed in double and compared in f32: the same on every device. q [B,T,H,K], k [B,S,H,K] f32 or
// f64. draws: as probsparse_draws makes them; undefined: the same ones, drawn on the device of q.
Tensor active_queries(const Tensor& q, const Tensor& k, const ProbsparseMasks& masks,
                      const Tensor& draws, const RandomKey& key, int64_t factor);

}  // namespace linnet
