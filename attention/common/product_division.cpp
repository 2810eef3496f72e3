#include "attention/common/product_division.h"

#include "attention/common/cuda/product_division.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/cuda/backend.h"
#include "core/sequence_view.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 16;  // rows of a part

// Row (b, t, h) is number r of all rows; calls body(r) for rows of valid tokens, rest(r) for the
// others.
template <typename Body, typename Rest>
void for_rows(const Tensor& x, const Tensor& mask, const Body& body, const Rest& rest) {
  const int64_t heads = x.size(2);
  const uint8_t* valid = mask.defined() ? mask.data<uint8_t>() : nullptr;
  parallel_for(x.size(0) * x.size(1) * heads, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      valid == nullptr || valid[r / heads] != 0 ? body(r) : rest(r);
    }
  });
}

template <typename T>
T denominator(Normalizer normalizer, double floor, T x) {
  const T epsilon = static_cast<T>(floor);
  return normalizer == Normalizer::add ? x + epsilon : (x < epsilon ? epsilon : x);
}

template <typename T>
void forward(const ProductDivision& d, const Tensor& y) {
  const int64_t V = y.size(3), K = d.queries.size(3);
  const T *numerators = d.numerators.data<T>(), *queries = d.queries.data<T>(),
          *sums = d.sums.data<T>();
  T* out = y.data<T>();
  for_rows(
      y, d.query_mask,
      [&](int64_t r) {
        const T x = dot_row(queries + r * K, sums + r * K, K);
        const T factor = T(1) / denominator(d.normalizer, d.floor, x);
        for (int64_t c = 0; c < V; ++c) out[r * V + c] = numerators[r * V + c] * factor;
      },
      [&](int64_t r) { std::fill_n(out + r * V, V, T(0)); });
}

template <typename T>
void backward(const ProductDivision& d, const Tensor& dy, const ProductDivisionGradients& to) {
  const int64_t V = dy.size(3), K = d.queries.size(3);
  const T *numerators = d.numerators.data<T>(), *queries = d.queries.data<T>(),
          *sums = d.sums.data<T>(), *from = dy.data<T>();
  T *dnumerators = to.numerators.data<T>(), *dqueries = to.queries.data<T>(),
    *dsums = to.sums.data<T>();
  for_rows(
      dy, d.query_mask,
      [&](int64_t r) {
        const T x = dot_row(queries + r * K, sums + r * K, K);
        const T factor = T(1) / denominator(d.normalizer, d.floor, x);
        const bool clamped = d.normalizer == Normalizer::clamp && x < static_cast<T>(d.floor);
        const T along = dot_row(from + r * V, numerators + r * V, V);
        const T dx = clamped ? T(0) : -along * factor * factor;
        for (int64_t c = 0; c < V; ++c) dnumerators[r * V + c] = from[r * V + c] * factor;
        for (int64_t c = 0; c < K; ++c) {
          dqueries[r * K + c] = dx * sums[r * K + c];
          dsums[r * K + c] = dx * queries[r * K + c];
        }
      },
      [&](int64_t r) {
        std::fill_n(dnumerators + r * V, V, T(0));
        std::fill_n(dqueries + r * K, K, T(0));
        std::fill_n(dsums + r * K, K, T(0));
      });
}

Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

}  // namespace

Variable divide_by_products(const Variable& numerators, const Variable& queries,
                            const Variable& sums, Normalizer normalizer, double floor,
                            const Tensor& query_mask) {
  const ProductDivision d{numerators.value(), queries.value(), sums.value(),
                          query_mask,         normalizer,      floor};
  require(d.queries.shape() == d.sums.shape() && d.queries.shape().rank() == 4 &&
              d.numerators.shape().rank() == 4 && d.numerators.size(2) == d.queries.size(2),
          "divide_by_products: numerators ", d.numerators.shape(), ", queries ", d.queries.shape(),
          " and sums ", d.sums.shape(), " do not belong together");
  const bool wide = d.numerators.dtype() == DType::f64;
  const Tensor y = empty_like(d.numerators);
  if (on_cuda(y)) {
    if constexpr (kCuda) cuda::divide_by_products(d, y);
  } else {
    wide ? forward<double>(d, y) : forward<float>(d, y);
  }
  return record("divide_by_products", y, {numerators, queries, sums},
                [d, wide](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  const ProductDivisionGradients to{empty_like(d.numerators), empty_like(d.queries),
                                                    empty_like(d.sums)};
                  if (on_cuda(dy)) {
                    if constexpr (kCuda) cuda::divide_by_products_backward(d, dy, to);
                  } else {
                    wide ? backward<double>(d, dy, to) : backward<float>(d, dy, to);
                  }
                  gradients.add(0, to.numerators);
                  gradients.add(1, to.queries);
                  gradients.add(2, to.sums);
                });
}

}  // namespace linnet
