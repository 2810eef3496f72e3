// Arrays whose type, f32 or bf16, is known at run time: for kernels that are bound by memory, or
// that no training step waits for, so that one instantiation is enough.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda {

struct StoredValues {
  const void* data = nullptr;
  bool narrow = false;  // bf16

  __device__ __forceinline__ float at(int64_t i) const {
    if (narrow) return load(static_cast<const kernel_bf16*>(data) + i);
    return load(static_cast<const float*>(data) + i);
  }
  // The elements from index `first` on.
  __device__ __forceinline__ StoredValues from(int64_t first) const {
    return {static_cast<const unsigned char*>(data) + first * (narrow ? 2 : 4), narrow};
  }
};

struct StoredResults {
  void* data = nullptr;
  bool narrow = false;

  __device__ __forceinline__ float at(int64_t i) const { return StoredValues{data, narrow}.at(i); }
  __device__ __forceinline__ void put(int64_t i, float value) const {
    if (narrow) {
      store(static_cast<kernel_bf16*>(data) + i, value);
    } else {
      store(static_cast<float*>(data) + i, value);
    }
  }
};

// Throws Error for other dtypes; an undefined tensor gives null.
inline bool is_narrow(const Tensor& x) {
  bool narrow = false;
  dispatch(x.dtype(), [&](auto zero) { narrow = sizeof(zero) == sizeof(kernel_bf16); });
  return narrow;
}
inline StoredValues stored_values(const Tensor& x) {
  if (!x.defined()) return {};
  if (is_narrow(x)) return {pointer<const kernel_bf16>(x), true};
  return {pointer<const float>(x), false};
}
inline StoredResults stored_results(const Tensor& x) {
  if (!x.defined()) return {};
  if (is_narrow(x)) return {pointer<kernel_bf16>(x), true};
  return {pointer<float>(x), false};
}

}  // namespace linnet::cuda
