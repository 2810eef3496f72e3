// Causal LAVO in one pass on Variables: on the CPU (see one_pass_cpu.h), and on the tensor cores of
// a CUDA device (see cuda/lavo_pass.h).
#pragma once

#include "attention/lavo/one_pass_cpu.h"
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
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
  DrawPlace place;
  // u8 [B,T], 1 = valid, of queries, keys and compressed tokens; undefined: all. On a device only.
  Tensor mask;
};

struct LavoPassResult {
  Variable y;                   // [B,T,H,d]
  OrthogonalMemoryCarry carry;  // after the last segment of every row
};

// Whether the pass supports these inputs. On the CPU there must be at least as many heads of rows
// as threads, since a head is not split among threads. On a device they are bf16, heads up to 128
// wide, in eights, and windows up to 64, of at least 16 tokens.
bool lavo_pass_fits(const LavoPassVariables& inputs, const LavoPassContext& context);

// y is in the dtype of q. On the CPU f64 is computed in f64, f32 and bf16 in f32; on a device
// operands of products are bf16, sums f32. Differentiable in every input, also through the carried
// sums. Throws Error on shapes that do not fit.
LavoPassResult lavo_pass(const LavoPassVariables& inputs, const LavoPassContext& context);

}  // namespace linnet
