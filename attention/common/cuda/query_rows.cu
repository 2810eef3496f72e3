#include "attention/common/cuda/query_rows.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void rank_chosen(const Tensor& active, const Tensor& ranks) {
  const int64_t u = active.size(2), tokens = ranks.size(2);
  const int32_t* from = pointer<int32_t>(active);
  int32_t* to = pointer<int32_t>(ranks);
  for_each("rank_chosen", active.elements(), [=] __device__(int64_t i) {
    const int64_t t = from[i];
    if (t >= 0 && t < tokens) to[i / u * tokens + t] = static_cast<int32_t>(i % u);
  });
}

void number_rows(const RowNumbers& rule, const Tensor& numbers) {
  int32_t* to = pointer<int32_t>(numbers);
  for_each("number_rows", numbers.elements(),
           [=] __device__(int64_t i) { to[i] = rule.number(i); });
}

}  // namespace linnet::cuda
