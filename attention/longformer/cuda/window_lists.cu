#include "attention/longformer/cuda/window_lists.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

template <typename Lists>
void fill(const Lists& lists, const Tensor& index) {
  int32_t* to = pointer<int32_t>(index);
  const int64_t length = lists.length();
  for_each("longformer_lists", index.elements(),
           [=] __device__(int64_t i) { to[i] = lists.key(i / length, i % length); });
}

}  // namespace

void fill_index(const WindowLists& lists, const Tensor& index) {
  fill(lists, index);
}
void fill_index(const CausalLists& lists, const Tensor& index) {
  fill(lists, index);
}

}  // namespace linnet::cuda
