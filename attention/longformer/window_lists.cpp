#include "attention/longformer/window_lists.h"

#include "attention/longformer/cuda/window_lists.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

template <typename Lists>
ListsWithBias make(const Lists& lists, Device device) {
  const int64_t length = lists.length(), queries = lists.queries(), group = lists.group;
  ListsWithBias to;
  to.index = Tensor::empty({1, 1, (queries + group - 1) / group, length}, DType::i32, device);
  if (group > 1) to.bias = Tensor::empty({1, 1, queries, length}, DType::f32, device);
  if constexpr (kCuda) {
    if (on_cuda(to.index)) {
      cuda::fill(lists, to);
      return to;
    }
  }
  int32_t* index = to.index.data<int32_t>();
  float* bias = group > 1 ? to.bias.data<float>() : nullptr;
  parallel_for(queries * length, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fill_place(lists, i, index, bias);
  });
  return to;
}

}  // namespace

ListsWithBias made(const WindowLists& lists, Device device) {
  return make(lists, device);
}
ListsWithBias made(const CausalLists& lists, Device device) {
  return make(lists, device);
}

}  // namespace linnet
