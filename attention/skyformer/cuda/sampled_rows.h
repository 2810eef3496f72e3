// Skyformer's sampled rows on a CUDA device, in f32.
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace linnet::cuda {

// See attention/skyformer/sampled_rows.h; every output is overwritten.
void uniform_draws(const RandomKey& key, const Tensor& examples, const Tensor& draws);
void sampled_tokens(const Tensor& draws, const Tensor& mask, int64_t T, const Tensor& tokens);

}  // namespace linnet::cuda
