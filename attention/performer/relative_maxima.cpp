#include "attention/performer/relative_maxima.h"

#include "attention/common/segment_scan.h"
#include "attention/performer/cuda/relative_maxima.h"
#include "attention/performer/positive_features.h"
#include "attention/performer/relative_maxima_rule.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"

namespace linnet {
namespace {

using binding::dispatch;
using binding::empty_like;
using relative_maxima_rule::Projections;

constexpr int64_t kGrain = 4096;

// One scan over each group of rows [B,T,H]; the result stands in every row.
Tensor over_groups(const Tensor& rows, ScanKind kind, const MaximumGroups& groups) {
  if (groups.over == MaximumOver::row) return rows;
  SegmentScan scan;
  scan.kind = kind;
  scan.reach = ScanReach::whole;
  scan.mask = groups.mask;
  if (groups.over == MaximumOver::sequence) {
    scan.segments = groups.segments;
    return segment_scan(rows, scan);
  }
  // Over the tokens of each head, over the batch, over the heads: many short scans side by side.
  const int64_t B = rows.size(0), T = rows.size(1), H = rows.size(2);
  const Tensor sequences = segment_scan(rows, scan);
  scan.mask = Tensor();
  const Tensor heads = segment_scan(sequences.reshape({1, B, T * H}), scan);
  return segment_scan(heads.reshape({B * T, H, 1}), scan).reshape(rows.shape());
}

template <typename T>
Projections<T> rule_of(const Tensor& p, const Tensor& maxima, const Tensor& mask) {
  return {p.size(2), p.size(3), mask.defined() ? mask.data<uint8_t>() : nullptr, p.data<T>(),
          maxima.data<T>()};
}

Tensor differences(const Tensor& p, const Tensor& maxima) {
  const Tensor to = empty_like(p);
  if constexpr (kCuda) {
    if (on_cuda(p)) {
      cuda::relative_to_maxima(p, maxima, to);
      return to;
    }
  }
  dispatch(p.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Projections<T> rule = rule_of<T>(p, maxima, {});
    fill_elements<T>(to, kGrain, [&](int64_t i) { return rule.value(i); });
  });
  return to;
}

Tensor gradient_of(const Tensor& p, const Tensor& maxima, const MaximumGroups& groups,
                   const Tensor& dy) {
  Tensor sums = empty_like(maxima), counts = empty_like(maxima);
  const Tensor dp = empty_like(p);
  if constexpr (kCuda) {
    if (on_cuda(p)) {
      cuda::rows_at_maxima(p, maxima, groups.mask, dy, sums, counts);
      sums = over_groups(sums, ScanKind::sum, groups);
      counts = over_groups(counts, ScanKind::sum, groups);
      cuda::relative_to_maxima_backward(p, maxima, groups.mask, dy, sums, counts, dp);
      return dp;
    }
  }
  dispatch(p.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Projections<T> rule = rule_of<T>(p, maxima, groups.mask);
    const T* d = dy.data<T>();
    fill_elements<T>(sums, kGrain, [&](int64_t row) { return rule.sum(d, row); });
    fill_elements<T>(counts, kGrain, [&](int64_t row) { return rule.count(row); });
    sums = over_groups(sums, ScanKind::sum, groups);
    counts = over_groups(counts, ScanKind::sum, groups);
    const T *total = sums.data<T>(), *number = counts.data<T>();
    fill_elements<T>(dp, kGrain, [&](int64_t i) { return rule.gradient(d, total, number, i); });
  });
  return dp;
}

}  // namespace

Tensor group_maxima(const Tensor& rows, const MaximumGroups& groups) {
  return over_groups(rows, ScanKind::max, groups);
}

Variable relative_to_maxima(const Variable& p, const MaximumGroups& groups) {
  const Tensor& projections = p.value();
  binding::check_sequence(projections, "relative_to_maxima");
  // Without vectors: only the projections count.
  const Tensor maxima = group_maxima(largest_projections(projections, projections, false), groups);
  // Fused: equal maxima share the gradient, and groups of tokens are scans over documents.
  return record("relative_to_maxima", differences(projections, maxima), {p},
                [projections, maxima, groups](Gradients& gradients) {
                  gradients.add(0, gradient_of(projections, maxima, groups, gradients.output()));
                });
}

}  // namespace linnet
