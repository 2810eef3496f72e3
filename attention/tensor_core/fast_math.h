// Exponentials and reciprocals of few instructions, without branches, for values that are rounded
// to bf16.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda::tensor_core {

// 2^x to 2^-22; results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return exp2f(x);
#endif
}

// exp(x) to 2^-22 (1 + |x|).
__device__ __forceinline__ float fast_exp(float x) {
  return fast_exp2(x * 1.4426950408889634f);
}

// 1 / x to two units in the last place, without the branch for x beyond 2^126 (0 there).
__device__ __forceinline__ float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, x);
#else
  return 1 / x;
#endif
}

}  // namespace linnet::cuda::tensor_core
