#include "attention/sparse_fixed/fixed_lists.h"

#include "attention/sparse_fixed/cuda/fixed_lists.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {

Tensor index_of(const BlockwiseLists& lists, int64_t heads, Device device) {
  const int64_t count = lists.lists(), length = lists.length();
  const Tensor index = Tensor::empty({1, heads, count, length}, DType::i32, device);
  if constexpr (kCuda) {
    if (on_cuda(index)) {
      cuda::fill_index(lists, index);
      return index;
    }
  }
  int32_t* to = index.data<int32_t>();
  for (int64_t i = 0; i < index.elements(); ++i) {
    to[i] = lists.key(i / length / count, i / length % count, i % length);
  }
  return index;
}

Tensor bias_of(const BlockwiseLists& lists, int64_t heads, Device device) {
  const int64_t tokens = lists.tokens, length = lists.length();
  const Tensor bias = Tensor::empty({1, heads, tokens, length}, DType::f32, device);
  if constexpr (kCuda) {
    if (on_cuda(bias)) {
      cuda::fill_bias(lists, bias);
      return bias;
    }
  }
  float* to = bias.data<float>();
  parallel_for(bias.elements(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = lists.bias(i);
  });
  return bias;
}

Tensor index_of(const DocumentLists& lists, int64_t heads, const Tensor& positions, Device device) {
  const int64_t rows = positions.defined() ? positions.size(0) : 1;
  const int64_t tokens = lists.tokens, length = lists.length();
  const Tensor index = Tensor::empty({rows, heads, tokens, length}, DType::i32, device);
  if constexpr (kCuda) {
    if (on_cuda(index)) {
      cuda::fill_index(lists, positions, index);
      return index;
    }
  }
  const int32_t* position = positions.defined() ? positions.data<int32_t>() : nullptr;
  int32_t* to = index.data<int32_t>();
  parallel_for(rows * heads * tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / tokens % heads, row = i / tokens / heads;
      const int32_t* of_row = position != nullptr ? position + row * tokens : nullptr;
      for (int64_t l = 0; l < length; ++l) {
        to[i * length + l] = lists.key(of_row, head, i % tokens, l);
      }
    }
  });
  return index;
}

}  // namespace linnet
