#include "attention/sparse_fixed/fixed_lists.h"

#include "attention/sparse_fixed/cuda/fixed_lists.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {

Tensor index_of(const BlockwiseLists& lists, Device device) {
  const int64_t length = lists.length();
  const Tensor index = Tensor::empty({1, 1, lists.lists(), length}, DType::i32, device);
  if constexpr (kCuda) {
    if (on_cuda(index)) {
      cuda::fill_index(lists, index);
      return index;
    }
  }
  int32_t* to = index.data<int32_t>();
  for (int64_t i = 0; i < index.elements(); ++i) to[i] = lists.key(i / length, i % length);
  return index;
}

Tensor index_of(const DocumentLists& lists, const Tensor& positions, Device device) {
  const int64_t rows = positions.defined() ? positions.size(0) : 1;
  const int64_t tokens = lists.tokens, length = lists.length();
  const Tensor index = Tensor::empty({rows, 1, tokens, length}, DType::i32, device);
  if constexpr (kCuda) {
    if (on_cuda(index)) {
      cuda::fill_index(lists, positions, index);
      return index;
    }
  }
  const int32_t* position = positions.defined() ? positions.data<int32_t>() : nullptr;
  int32_t* to = index.data<int32_t>();
  parallel_for(rows * tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* of_row = position != nullptr ? position + i / tokens * tokens : nullptr;
      for (int64_t l = 0; l < length; ++l) to[i * length + l] = lists.key(of_row, i % tokens, l);
    }
  });
  return index;
}

}  // namespace linnet
