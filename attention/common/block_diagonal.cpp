#include "attention/common/block_diagonal.h"

#include "attention/common/cuda/block_diagonal.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"
#include "core/cuda/backend.h"

namespace linnet {

Variable block_diagonal(const Variable& weight) {
  const int64_t H = weight.size(0), N = weight.size(1), K = weight.size(2);
  const Device device = weight.value().device();
  // Copies every block between both layouts.
  const auto copy = [=](const Tensor& blocks, const Tensor& full, bool expand) {
    if constexpr (kCuda) {
      if (on_cuda(full)) {
        return expand ? cuda::expand_block_diagonal(blocks, full)
                      : cuda::gather_block_diagonal(full, blocks);
      }
    }
    for (int64_t row = 0; row < H * N; ++row) {
      const Tensor block = blocks.slice(row * K, {K});
      const Tensor place = full.slice((row * H + row / N) * K, {K});
      expand ? place.copy_from(block) : block.copy_from(place);
    }
  };
  const Tensor full = Tensor::zeros({H * N, H * K}, weight.dtype(), device);
  copy(weight.value(), full, true);
  return record("block_diagonal", full, {weight}, [=](Gradients& gradients) {
    const Tensor& dfull = gradients.output();
    const Tensor blocks = Tensor::empty({H, N, K}, dfull.dtype(), device);
    copy(blocks, dfull, false);
    gradients.add(0, blocks);
  });
}

Variable head_linear(const Variable& x, const Variable& weight, const Variable& bias) {
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2);
  const Variable rows = reshape(x, {B, T, H * x.size(3)});
  return reshape(linear(rows, block_diagonal(weight), bias), {B, T, H, weight.size(1)});
}

}  // namespace linnet
