#include "attention/common/joint/cuda/key_lists.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void key_lists(const KeyLists& rule, const Tensor& lists) {
  int32_t* to = pointer<int32_t>(lists);
  for_each("key_lists", lists.elements(),
           [=] __device__(int64_t i) { to[i] = rule.key(i / rule.length, i % rule.length); });
}

}  // namespace linnet::cuda
