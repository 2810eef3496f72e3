// The read-out of LAVO on Variables: see cpu.h for the equation.
#pragma once

#include "attention/primitives/orthogonal_memory/cpu.h"
#include "autograd/dropout.h"
#include "autograd/variable.h"

namespace linnet {

// Inputs of the memory that are not differentiable. Tensors may be undefined (see each).
// options.shared follows from the basis and need not be set.
struct OrthogonalMemoryContext {
  OrthogonalMemoryOptions options;
  // q reads the codes of another sequence: scope whole, segments and positions are not used.
  bool cross = false;
  Tensor query_mask;  // u8 [B,T], 1 = valid; undefined: all
  Tensor code_mask;   // u8 [B,T]; cross: [B,S]
  Tensor segments;    // i32 [B,T]: tokens see only their own segment; undefined: one per row
  // i32 [B,T]: position of each token in its document; undefined: counted from place.time_offset.
  // Only that of the first token of a row is read.
  Tensor positions;
  // Names the draws of dropout.
  DrawPlace place;
};

// The carried state: sums [B,M,r] over completed windows and over the one that is not, M = H or 1
// (f32, or f64 for f64 inputs), and valid tokens i64 [B,2] in each. All or none are defined.
struct OrthogonalMemoryCarry {
  Variable completed, partial;
  Tensor counts;
};

struct OrthogonalMemoryResult {
  Variable y;  // [B,T,H,d]
  OrthogonalMemoryCarry carry;
  // i64 [B,T]: valid tokens in the memory that each token read; where 0, y is 0.
  Tensor memory_tokens;
};

// q [B,T,H,d] reads the memory of codes f [B,T,H,d] (cross: [B,S,H,d], S = 0 where the carried
// state is the encoded source). basis [H,r,d]: one per head; [r,H*d]: one memory shared by the
// heads, its columns split into heads. y is in the dtype of q; f64 is computed in f64, f32 and bf16
// in f32. Differentiable in q, f, basis and the carried sums. On a CUDA device f32 and bf16. Throws
// Error on shapes that do not fit.
OrthogonalMemoryResult orthogonal_memory(const Variable& q, const Variable& f,
                                         const Variable& basis, const OrthogonalMemoryCarry& carry,
                                         const OrthogonalMemoryContext& context);

}  // namespace linnet
