// Single queries of a sequence, for each head its own: taken out, and put back.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Queries of every head: `active` i32 [B,H,u], times in the sequence, none twice; -1: none. `ranks`
// i32 [B,H,T]: where in `active` a token of a head stands; -1: nowhere.
struct ChosenQueries {
  Tensor active, ranks;
};
// Throws UsageError for tokens that do not exist; on a CUDA device, where looking at them would
// mean waiting, they are none.
ChosenQueries chosen_queries(const Tensor& active, int64_t T);

// [B,u,H,K] of x [B,T,H,K]; zeros where there is none. Differentiable in x.
Variable take_queries(const Variable& x, const ChosenQueries& chosen);

// y [B,T,H,V]: `rows` [B,u,H,V] at the chosen queries, `others` [B,H V] at all others, 0 at masked
// tokens (mask u8 [B,T] may be undefined). Equal dtypes. Differentiable in rows and others.
Variable put_queries(const Variable& rows, const Variable& others, const ChosenQueries& chosen,
                     const Tensor& mask);

}  // namespace linnet
