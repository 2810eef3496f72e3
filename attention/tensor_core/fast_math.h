// Functions of a few instructions without branches, for values that are rounded to bf16.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda::tensor_core {

// exp(x) to 2^-21; results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
  return result;
#else
  return expf(x);
#endif
}

}  // namespace linnet::cuda::tensor_core
