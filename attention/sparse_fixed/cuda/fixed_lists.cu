#include "attention/sparse_fixed/cuda/fixed_lists.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void fill_index(const BlockwiseLists& lists, const Tensor& index) {
  int32_t* to = pointer<int32_t>(index);
  const int64_t length = lists.length();
  for_each("sparse_fixed_blocks", index.elements(),
           [=] __device__(int64_t i) { to[i] = lists.key(i / length, i % length); });
}

void fill_index(const DocumentLists& lists, const Tensor& positions, const Tensor& index) {
  const int32_t* position = pointer_or_null<int32_t>(positions);
  int32_t* to = pointer<int32_t>(index);
  const int64_t tokens = lists.tokens, length = lists.length();
  for_each("sparse_fixed_queries", index.elements(), [=] __device__(int64_t i) {
    const int64_t token = i / length;
    const int32_t* of_row = position != nullptr ? position + token / tokens * tokens : nullptr;
    to[i] = lists.key(of_row, token % tokens, i % length);
  });
}

}  // namespace linnet::cuda
