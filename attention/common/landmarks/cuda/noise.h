// landmark_noise (attention/common/landmarks/noise.h) on a CUDA device, f32 or bf16.
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace linnet::cuda {

Tensor landmark_noise(const RandomKey& key, const Tensor& examples, const Tensor& x, int64_t first);

}  // namespace linnet::cuda
