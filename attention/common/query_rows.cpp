#include "attention/common/query_rows.h"

#include <algorithm>
#include <vector>

#include "attention/common/cuda/query_rows.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

template <typename Body>
void for_all(int64_t count, int64_t grain, const Body& body) {
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

// to [B,n,H,K] = from [B,m,H,K] at the places [B,H,n]; 0 where that is -1, and at masked tokens of
// `to` or `from`.
void copy_rows(const Tensor& from, const Tensor& places, const Tensor& to, const Tensor& mask,
               bool mask_is_of_source) {
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::copy_query_rows(from, places, to, mask, mask_is_of_source);
  }
  const int64_t n = to.size(1), m = from.size(1), H = to.size(2), K = to.size(3);
  const int32_t* place = places.data<int32_t>();
  const uint8_t* valid = mask.defined() ? mask.data<uint8_t>() : nullptr;
  dispatch_floating(to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* sources = from.data<T>();
    T* rows = to.data<T>();
    for_all(to.size(0) * n * H, kGrain / (K + 1) + 1, [&](int64_t i) {
      const int64_t h = i % H, t = i / H % n, b = i / H / n;
      const int64_t source = place[(b * H + h) * n + t];
      const int64_t token = mask_is_of_source ? b * m + source : b * n + t;
      const bool kept = source >= 0 && (valid == nullptr || valid[token] != 0);
      if (kept) {
        std::copy_n(sources + ((b * m + source) * H + h) * K, K, rows + i * K);
      } else {
        std::fill_n(rows + i * K, K, T{});
      }
    });
  });
}

// Adds `others` [B,H V] to the tokens of y [B,T,H,V] that were not chosen.
void fill_others(const Tensor& others, const Tensor& ranks, const Tensor& mask, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::fill_other_queries(others, ranks, mask, y);
  }
  const int64_t T = y.size(1), H = y.size(2), V = y.size(3);
  const uint8_t* valid = mask.defined() ? mask.data<uint8_t>() : nullptr;
  dispatch_floating(y.dtype(), [&](auto zero) {
    using Number = decltype(zero);
    for_all(y.elements(), kGrain, [&](int64_t i) {
      const int64_t c = i % V, h = i / V % H, t = i / V / H % T, b = i / V / H / T;
      if (ranks.data<int32_t>()[(b * H + h) * T + t] >= 0) return;
      if (valid != nullptr && valid[b * T + t] == 0) return;
      y.data<Number>()[i] = others.data<Number>()[(b * H + h) * V + c];
    });
  });
}

// The sums [B,H V] of dy over the tokens that were not chosen.
void sum_others(const Tensor& dy, const Tensor& ranks, const Tensor& mask, const Tensor& sums) {
  if constexpr (kCuda) {
    if (on_cuda(dy)) return cuda::sum_other_queries(dy, ranks, mask, sums);
  }
  const int64_t T = dy.size(1), H = dy.size(2), V = dy.size(3);
  const uint8_t* valid = mask.defined() ? mask.data<uint8_t>() : nullptr;
  dispatch_floating(dy.dtype(), [&](auto zero) {
    using Number = decltype(zero);
    // All channels of a head in one inner loop: they are contiguous.
    parallel_for(dy.size(0) * H, 1, [&](int64_t begin, int64_t end) {
      std::vector<double> totals(static_cast<size_t>(V));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t h = i % H, b = i / H;
        std::fill(totals.begin(), totals.end(), 0.0);
        for (int64_t t = 0; t < T; ++t) {
          const bool other = ranks.data<int32_t>()[i * T + t] < 0;
          if (!other || (valid != nullptr && valid[b * T + t] == 0)) continue;
          const Number* row = dy.data<Number>() + ((b * T + t) * H + h) * V;
          for (int64_t c = 0; c < V; ++c) {
            totals[static_cast<size_t>(c)] += static_cast<double>(row[c]);
          }
        }
        std::transform(totals.begin(), totals.end(), sums.data<Number>() + i * V, [](double total) {
          return static_cast<Number>(static_cast<Compute<Number>>(total));
        });
      }
    });
  });
}

}  // namespace

ChosenQueries chosen_queries(const Tensor& active, int64_t T) {
  const int64_t B = active.size(0), H = active.size(1), u = active.size(2);
  const Tensor ranks = Tensor::full({B, H, T}, -1, DType::i32, active.device());
  if constexpr (kCuda) {
    if (on_cuda(active)) {
      cuda::rank_chosen(active, ranks);
      return {active, ranks};
    }
  }
  for (int64_t i = 0; i < active.elements(); ++i) {
    const int32_t t = active.data<int32_t>()[i];
    require_usage(t < T, "choices/active: expected tokens below ", T, ", got ", t);
    if (t >= 0) ranks.data<int32_t>()[i / u * T + t] = static_cast<int32_t>(i % u);
  }
  return {active, ranks};
}

Variable take_queries(const Variable& x, const ChosenQueries& chosen) {
  const Tensor& from = x.value();
  const Tensor rows =
      Tensor::empty({from.size(0), chosen.active.size(2), from.size(2), from.size(3)}, from.dtype(),
                    from.device());
  copy_rows(from, chosen.active, rows, {}, false);
  return record("take_queries", rows, {x}, [shape = from.shape(), chosen](Gradients& gradients) {
    const Tensor& d = gradients.output();
    const Tensor dx = Tensor::empty(shape, d.dtype(), d.device());
    copy_rows(d, chosen.ranks, dx, {}, false);
    gradients.add(0, dx);
  });
}

Variable put_queries(const Variable& rows, const Variable& others, const ChosenQueries& chosen,
                     const Tensor& mask) {
  const Tensor& from = rows.value();
  const Tensor y = Tensor::empty({from.size(0), chosen.ranks.size(2), from.size(2), from.size(3)},
                                 from.dtype(), from.device());
  copy_rows(from, chosen.ranks, y, mask, false);
  fill_others(others.value(), chosen.ranks, mask, y);
  return record("put_queries", y, {rows, others},
                [shape = from.shape(), sums = others.shape(), chosen, mask](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  const Tensor drows = Tensor::empty(shape, dy.dtype(), dy.device());
                  const Tensor dothers = Tensor::empty(sums, dy.dtype(), dy.device());
                  copy_rows(dy, chosen.active, drows, mask, true);
                  sum_others(dy, chosen.ranks, mask, dothers);
                  gradients.add(0, drows);
                  gradients.add(1, dothers);
                });
}

}  // namespace linnet
