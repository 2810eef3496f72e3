#include "attention/cuda/block_diagonal.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

template <typename T>
void expand(const Tensor& blocks, const Tensor& full) {
  const int64_t N = blocks.size(1), K = blocks.size(2), columns = full.size(1);
  const T* from = pointer<T>(blocks);
  T* to = pointer<T>(full);
  for_each("expand_block_diagonal", full.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / columns, column = i % columns;
    const bool inside = column / K == row / N;
    store(to + i, inside ? load(from + row * K + column % K) : 0.0f);
  });
}

template <typename T>
void gather(const Tensor& full, const Tensor& blocks) {
  const int64_t N = blocks.size(1), K = blocks.size(2), columns = full.size(1);
  const T* from = pointer<T>(full);
  T* to = pointer<T>(blocks);
  for_each("gather_block_diagonal", blocks.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / K;
    store(to + i, load(from + row * columns + row / N * K + i % K));
  });
}

}  // namespace

void expand_block_diagonal(const Tensor& blocks, const Tensor& full) {
  dispatch(full.dtype(), [&](auto zero) { expand<decltype(zero)>(blocks, full); });
}

void gather_block_diagonal(const Tensor& full, const Tensor& blocks) {
  dispatch(full.dtype(), [&](auto zero) { gather<decltype(zero)>(full, blocks); });
}

}  // namespace linnet::cuda
