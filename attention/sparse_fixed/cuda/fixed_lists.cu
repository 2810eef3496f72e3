#include "attention/sparse_fixed/cuda/fixed_lists.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void fill_index(const FixedLists& lists, const Tensor& index) {
  int32_t* to = pointer<int32_t>(index);
  const int64_t length = lists.length();
  for_each("sparse_fixed_lists", index.elements(),
           [=] __device__(int64_t i) { to[i] = lists.key(i / length, i % length); });
}

}  // namespace linnet::cuda
