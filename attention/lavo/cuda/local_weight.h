// local_weight (attention/lavo/local_weight.h) on a CUDA device, f32 or bf16.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

Tensor local_weight(const Tensor& memory_tokens, const Tensor& local);

}  // namespace linnet::cuda
