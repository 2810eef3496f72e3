// Elements of tensors in host memory, computed one by one; and whether kernels compute instead.
#pragma once

#include <cstdint>

#include "core/cuda/backend.h"
#include "core/tensor.h"
#include "core/threads.h"

namespace linnet {

// Whether a device computes x; false in every build without CUDA.
inline bool on_device(const Tensor& x) {
  return kCuda && on_cuda(x);
}

// to[i] = f(i) for every element, on all threads, each of which takes at least `grain` of them.
template <typename T, typename F>
void fill_elements(const Tensor& to, int64_t grain, const F& f) {
  T* out = to.data<T>();
  parallel_for(to.elements(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = f(i);
  });
}

}  // namespace linnet
