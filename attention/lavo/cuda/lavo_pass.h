// LAVO's one pass (attention/lavo/one_pass.h) on a CUDA device, on tensor cores in bf16: one kernel
// forward, two backward (lavo_pass_fast.h).
#pragma once

#include "attention/lavo/one_pass.h"

namespace linnet::cuda {

// Whether the kernels cover these inputs and may be taken (core/kernel_choice.h).
bool lavo_pass_fits(const LavoPassVariables& inputs, const LavoPassContext& context);

// Throws Error on shapes that do not fit. The kernels read masks, segments and positions from the
// device: a captured graph may be replayed with other contents.
LavoPassResult lavo_pass(const LavoPassVariables& inputs, const LavoPassContext& context);

}  // namespace linnet::cuda
