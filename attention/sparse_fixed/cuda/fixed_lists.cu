#include "attention/sparse_fixed/cuda/fixed_lists.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void fill_index(const BlockwiseLists& lists, const Tensor& index) {
  int32_t* to = pointer<int32_t>(index);
  const int64_t count = lists.lists(), length = lists.length();
  for_each("sparse_fixed_blocks", index.elements(), [=] __device__(int64_t i) {
    to[i] = lists.key(i / length / count, i / length % count, i % length);
  });
}

void fill_bias(const BlockwiseLists& lists, const Tensor& bias) {
  float* to = pointer<float>(bias);
  for_each("sparse_fixed_biases", bias.elements(),
           [=] __device__(int64_t i) { to[i] = lists.bias(i); });
}

void fill_index(const DocumentLists& lists, const Tensor& positions, const Tensor& index) {
  const int32_t* position = pointer_or_null<int32_t>(positions);
  int32_t* to = pointer<int32_t>(index);
  const int64_t heads = index.size(1), tokens = lists.tokens, length = lists.length();
  for_each("sparse_fixed_queries", index.elements(), [=] __device__(int64_t i) {
    const int64_t query = i / length, head = query / tokens % heads;
    const int64_t row = query / tokens / heads;
    const int32_t* of_row = position != nullptr ? position + row * tokens : nullptr;
    to[i] = lists.key(of_row, head, query % tokens, i % length);
  });
}

}  // namespace linnet::cuda
