#include "attention/common/joint/key_lists.h"

#include <algorithm>

#include "attention/common/joint/cuda/key_lists.h"
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
    const int64_t p = rule.first + list * rule.group;
    // Indices named by the places, before indices outside the keys are left out.
    int64_t begin = 0, end = rule.length;
    if (rule.kind == KeyLists::Kind::block) {
      begin = p - p % rule.size - rule.before;
      end = begin + rule.length;
    } else if (rule.kind != KeyLists::Kind::all) {
      end = rule.kind == KeyLists::Kind::back ? p + 1 : p / rule.size * rule.rank;
      begin = end - rule.length;
    }
    if (rule.causal) end = std::min(end, p + 1);
    begin = std::max<int64_t>(begin, std::max<int64_t>(rule.offset, 0));
    end = std::min(end, rule.offset + rule.keys);
    pairs += std::min(rule.group, queries - list * rule.group) * std::max<int64_t>(end - begin, 0);
  }
  return static_cast<double>(pairs);
}

}  // namespace linnet
