#include "attention/common/query_rows.h"

#include "attention/common/cuda/query_rows.h"
#include "attention/primitives/common/fill_elements.h"
#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

// i32 [B,n H]: the numbers of the rows that tokens [B,n,H] read from [B,m,H,..], whose places are
// [B,H,n]. Without a place that of `rest`; -1 where that is -1, and at masked tokens.
Tensor row_numbers(const Tensor& places, int64_t rest, const Tensor& mask) {
  const int64_t B = places.size(0), H = places.size(1), n = places.size(2);
  const Tensor numbers = Tensor::empty({B, n * H}, DType::i32, places.device());
  const RowNumbers rule{n, H, rest, static_cast<const int32_t*>(places.raw()),
                        mask.defined() ? static_cast<const uint8_t*>(mask.raw()) : nullptr};
  if constexpr (kCuda) {
    if (on_cuda(numbers)) {
      cuda::number_rows(rule, numbers);
      return numbers;
    }
  }
  fill_elements<int32_t>(numbers, kGrain, [&](int64_t i) { return rule.number(i); });
  return numbers;
}

// x [B,n,H,K] as rows [B,n H,K].
Variable rows_of(const Variable& x) {
  return reshape(x, {x.size(0), x.size(1) * x.size(2), x.size(3)});
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
  const Variable rows =
      gather(rows_of(x), row_numbers(chosen.active, -1, {}), row_numbers(chosen.ranks, -1, {}));
  return reshape(rows, {x.size(0), chosen.active.size(2), x.size(2), x.size(3)});
}

Variable put_queries(const Variable& rows, const Variable& others, const ChosenQueries& chosen,
                     const Tensor& mask) {
  const int64_t B = rows.size(0), u = rows.size(1), H = rows.size(2), V = rows.size(3);
  // The others are one row more.
  const Variable all = concatenate({rows, reshape(others, {B, 1, H, V})}, 1);
  return reshape(gather(rows_of(all), row_numbers(chosen.ranks, u, mask)),
                 {B, chosen.ranks.size(2), H, V});
}

}  // namespace linnet
