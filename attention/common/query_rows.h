// Single queries of a sequence, chosen per head: gather and scatter.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Queries of every head: `active` i32 [B,H,u], times in the sequence, none twice; -1: none. `ranks`
// i32 [B,H,T]: the index in `active` of a token of a head; -1: none.
struct ChosenQueries {
  Tensor active, ranks;
};
// Throws UsageError for tokens that do not exist; a CUDA device, which would have to synchronize to
// check them, takes them as -1.
ChosenQueries chosen_queries(const Tensor& active, int64_t T);

// [B,u,H,K] of x [B,T,H,K]; zeros for -1. Differentiable in x.
Variable take_queries(const Variable& x, const ChosenQueries& chosen);

// y [B,T,H,V]: `rows` [B,u,H,V] at the chosen queries, `others` [B,H V] at all others, 0 at masked
// tokens (mask u8 [B,T] may be undefined). Equal dtypes. Differentiable in rows and others.
Variable put_queries(const Variable& rows, const Variable& others, const ChosenQueries& chosen,
                     const Tensor& mask);

}  // namespace linnet
