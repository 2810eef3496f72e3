// Causal LAVO in one pass on Variables, on the CPU: see one_pass_cpu.h.
#pragma once

#include "attention/lavo/one_pass_cpu.h"
#include "attention/primitives/orthogonal_memory.h"
#include "autograd/variable.h"

namespace linnet {

struct LavoPassVariables {
  Variable q, k, v;  // [B,T,H,d]
  Variable basis;    // [H,r,d]
  Variable bias;     // [H or 1, 2 window - 1]; undefined: none
};

struct LavoPassContext {
  LavoPassOptions options;
  // As in OrthogonalMemoryContext.
  Tensor segments, positions;
  int64_t time_offset = 0;
};

struct LavoPassResult {
  Variable y;                   // [B,T,H,d]
  OrthogonalMemoryCarry carry;  // after the last segment of every row
};

// Whether the pass takes these inputs, and at least as many heads of rows as there are threads: a
// head is not cut among them.
bool lavo_pass_fits(const LavoPassVariables& inputs, const LavoPassOptions& options);

// y is in the dtype of q; f64 is computed in f64, f32 and bf16 in f32. Differentiable in every
// input, also through the carried sums. Throws Error on shapes that do not fit.
LavoPassResult lavo_pass(const LavoPassVariables& inputs, const LavoPassContext& context);

}  // namespace linnet
