// Projections that are fused in one array [B,T,parts,H,K], for tests of kernels that read and write
// sequences where they are.
#pragma once

#include <vector>

#include "core/cuda/kernel.h"
#include "core/sequence_view.h"
#include "core/tensor.h"

namespace linnet::test {

// A part [B,T,H,K], read or written where it is.
inline SequenceView<cuda::kernel_bf16> part_view(const Tensor& x, int64_t part) {
  const int64_t T = x.size(1), parts = x.size(2), H = x.size(3), K = x.size(4);
  return {cuda::pointer<cuda::kernel_bf16>(x) + part * H * K,
          x.size(0),
          T,
          H,
          K,
          T * parts * H * K,
          parts * H * K,
          K};
}

// The same as a tensor of its own, on the CPU.
inline Tensor part_of(const Tensor& x, int64_t part) {
  const int64_t B = x.size(0), T = x.size(1), parts = x.size(2), width = x.size(3) * x.size(4);
  const std::vector<double> numbers = x.to(Device{}).to_vector<double>();
  std::vector<double> own(static_cast<size_t>(B * T * width));
  for (int64_t i = 0; i < B * T * width; ++i) {
    const int64_t at = (i / width * parts + part) * width + i % width;
    own[static_cast<size_t>(i)] = numbers[static_cast<size_t>(at)];
  }
  return Tensor::from(own, {B, T, x.size(3), x.size(4)}).to(DType::bf16);
}

}  // namespace linnet::test
