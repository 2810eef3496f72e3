#include "attention/longformer/window_lists.h"

#include "attention/longformer/cuda/window_lists.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

template <typename Lists>
Tensor make_index(const Lists& lists, Device device) {
  const int64_t length = lists.length();
  const Tensor index = Tensor::empty({1, 1, lists.queries(), length}, DType::i32, device);
  if constexpr (kCuda) {
    if (on_cuda(index)) {
      cuda::fill_index(lists, index);
      return index;
    }
  }
  int32_t* to = index.data<int32_t>();
  parallel_for(lists.queries(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t l = 0; l < length; ++l) to[i * length + l] = lists.key(i, l);
    }
  });
  return index;
}

}  // namespace

Tensor index_of(const WindowLists& lists, Device device) {
  return make_index(lists, device);
}
Tensor index_of(const CausalLists& lists, Device device) {
  return make_index(lists, device);
}

}  // namespace linnet
