// The queries that ProbSparse attention answers exactly: the most outstanding ones over sampled
// keys.
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace linnet {

// c ceil(ln n), at least 1 and at most n: the keys sampled for a query, and the queries that are
// answered exactly, of n valid tokens.
int64_t probsparse_count(int64_t n, int64_t factor);

// Draws in [0, 1), f64 [T, probsparse_count(T)] on the host, which choose the sampled keys.
Tensor probsparse_draws(const RandomKey& key, int64_t T, int64_t factor);

// i32 [B,H,probsparse_count(T)] on the device of q: the most outstanding queries of every head, the
// most outstanding first (of equals the earlier); -1 after them where padding leaves fewer. M_i =
// max - sum / n of the products of q_i with keys sampled with replacement from the n valid ones,
// summed in double and compared in f32: the same on every device. q, k [B,T,H,K] f32 or f64; mask
// u8 [B,T] may be undefined. draws: as probsparse_draws makes them; undefined: the same ones, drawn
// on the device of q.
Tensor active_queries(const Tensor& q, const Tensor& k, const Tensor& mask, const Tensor& draws,
                      const RandomKey& key, int64_t factor);

}  // namespace linnet
