#include "attention/longformer/cuda/window_lists.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

template <typename Lists>
void fill_typed(const Lists& lists, const ListsWithBias& to) {
  int32_t* index = pointer<int32_t>(to.index);
  float* bias = pointer_or_null<float>(to.bias);
  for_each("longformer_lists", lists.queries() * lists.length(),
           [=] __device__(int64_t i) { fill_place(lists, i, index, bias); });
}

}  // namespace

void fill(const WindowLists& lists, const ListsWithBias& to) {
  fill_typed(lists, to);
}
void fill(const CausalLists& lists, const ListsWithBias& to) {
  fill_typed(lists, to);
}

}  // namespace linnet::cuda
