// Positions as vectors, on a CUDA device.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// positions i32 [B,T], rows [B,T,H,count] in f32 or bf16: see attention/synthesizer/one_hot.h.
void one_hot_positions(const Tensor& positions, const Tensor& rows);

}  // namespace linnet::cuda
