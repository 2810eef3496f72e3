// Tensors as kernels read and write them that copy rows 16 bytes at a time. Internal to the CUDA
// code of attention.
#pragma once

#include "core/cuda/kernel.h"
#include "core/sequence_view.h"

namespace linnet::cuda {

// Whether a tensor begins on 16 bytes, as copies need it.
inline bool is_aligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
}
// x, or a copy where it does not.
inline Tensor aligned(const Tensor& x) {
  return is_aligned(x) ? x : x.clone();
}

// A view of a dense [B,T,H,K]; empty where it is undefined.
template <typename E>
SequenceView<E> view_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {pointer<E>(x), x.size(0), x.size(1), x.size(2), x.size(3)};
}

}  // namespace linnet::cuda
