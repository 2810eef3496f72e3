#include "attention/joint/key_lists.h"

#include <algorithm>

#include "attention/joint/cuda/key_lists.h"
#include "core/cuda/backend.h"

namespace linnet {

Tensor key_lists(const KeyLists& rule, Device device) {
  const Tensor lists = Tensor::empty({1, 1, rule.lists, rule.length}, DType::i32, device);
  if constexpr (kCuda) {
    if (on_cuda(lists)) {
      cuda::key_lists(rule, lists);
      return lists;
    }
  }
  for (int64_t i = 0; i < lists.elements(); ++i) {
    lists.data<int32_t>()[i] = rule.key(i / rule.length, i % rule.length);
  }
  return lists;
}

double listed_pairs(const KeyLists& rule, int64_t queries) {
  int64_t pairs = 0;
  for (int64_t list = 0; list < rule.lists; ++list) {
    const int64_t own = std::min(rule.group, queries - list * rule.group);
    int64_t seen = 0;
    for (int64_t place = 0; place < rule.length; ++place) seen += rule.key(list, place) >= 0;
    pairs += own * seen;
  }
  return static_cast<double>(pairs);
}

}  // namespace linnet
