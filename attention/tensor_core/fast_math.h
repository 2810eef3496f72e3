// Exponentials, logarithms and reciprocals of few instructions, without branches, for values that
// are rounded to bf16.
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

// log(x) of x >= 0 to 2^-22 (1 + |log x|); numbers below 2^-126 count as that.
__device__ __forceinline__ float fast_log(float x) {
  constexpr float kLeast = 1.17549435e-38f, kLogOf2 = 0.693147181f;
#if defined(__CUDA_ARCH__)
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(fmaxf(x, kLeast)));
  return result * kLogOf2;
#else
  return log2f(fmaxf(x, kLeast)) * kLogOf2;
#endif
}

// 1 / x to a unit in the last place; infinite for x below 2^-126, 0 for x beyond 2^126.
__device__ __forceinline__ float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1 / x;
#endif
}

}  // namespace linnet::cuda::tensor_core
