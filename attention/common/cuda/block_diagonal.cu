#include "attention/common/cuda/block_diagonal.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

void expand_block_diagonal(const Tensor& blocks, const Tensor& full) {
  const int64_t N = blocks.size(1), K = blocks.size(2), columns = full.size(1);
  const StoredValues from = stored_values(blocks);
  const StoredResults to = stored_results(full);
  for_each("expand_block_diagonal", full.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / columns, column = i % columns;
    const bool inside = column / K == row / N;
    to.put(i, inside ? from.at(row * K + column % K) : 0.0f);
  });
}

void gather_block_diagonal(const Tensor& full, const Tensor& blocks) {
  const int64_t N = blocks.size(1), K = blocks.size(2), columns = full.size(1);
  const StoredValues from = stored_values(full);
  const StoredResults to = stored_results(blocks);
  for_each("gather_block_diagonal", blocks.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / K;
    to.put(i, from.at(row * columns + row / N * K + i % K));
  });
}

}  // namespace linnet::cuda
