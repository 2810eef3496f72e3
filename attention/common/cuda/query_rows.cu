#include "attention/common/cuda/query_rows.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

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

void copy_query_rows(const Tensor& from, const Tensor& places, const Tensor& to, const Tensor& mask,
                     bool mask_is_of_source) {
  const int64_t n = to.size(1), m = from.size(1), H = to.size(2), K = to.size(3);
  const int32_t* place = pointer<int32_t>(places);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  const StoredValues source_rows = stored_values(from);
  const StoredResults out = stored_results(to);
  for_each("copy_query_rows", to.elements(), [=] __device__(int64_t i) {
    const int64_t c = i % K, h = i / K % H, t = i / K / H % n, b = i / K / H / n;
    const int64_t source = place[(b * H + h) * n + t];
    const int64_t token = mask_is_of_source ? b * m + source : b * n + t;
    const bool kept = source >= 0 && source < m && (valid == nullptr || valid[token] != 0);
    out.put(i, kept ? source_rows.at(((b * m + source) * H + h) * K + c) : 0.0f);
  });
}

void fill_other_queries(const Tensor& others, const Tensor& ranks, const Tensor& mask,
                        const Tensor& y) {
  const int64_t tokens = y.size(1), H = y.size(2), V = y.size(3);
  const int32_t* rank = pointer<int32_t>(ranks);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  const StoredValues from = stored_values(others);
  const StoredResults out = stored_results(y);
  for_each("fill_other_queries", y.elements(), [=] __device__(int64_t i) {
    const int64_t h = i / V % H, t = i / V / H % tokens, b = i / V / H / tokens;
    if (rank[(b * H + h) * tokens + t] >= 0) return;
    if (valid != nullptr && valid[b * tokens + t] == 0) return;
    out.put(i, from.at((b * H + h) * V + i % V));
  });
}

void sum_other_queries(const Tensor& dy, const Tensor& ranks, const Tensor& mask,
                       const Tensor& sums) {
  const int64_t tokens = dy.size(1), H = dy.size(2), V = dy.size(3);
  const int32_t* rank = pointer<int32_t>(ranks);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  const StoredValues from = stored_values(dy);
  const StoredResults out = stored_results(sums);
  for_each("sum_other_queries", sums.elements(), [=] __device__(int64_t i) {
    const int64_t c = i % V, h = i / V % H, b = i / V / H;
    double total = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      if (rank[(b * H + h) * tokens + t] >= 0) continue;
      if (valid != nullptr && valid[b * tokens + t] == 0) continue;
      total += static_cast<double>(from.at(((b * tokens + t) * H + h) * V + c));
    }
    out.put(i, static_cast<float>(total));
  });
}

}  // namespace linnet::cuda
