#include "attention/common/cuda/product_division.h"

#include "core/cuda/block_reduce.h"

namespace linnet::cuda {
namespace {

constexpr int kWarps = 8;  // of a block

struct Arguments {
  const float *numerators, *queries, *sums;
  const uint8_t* mask;
  int64_t rows, heads, key_width, value_width;
  Normalizer normalizer;
  float floor;

  __device__ bool valid(int64_t row) const { return mask == nullptr || mask[row / heads] != 0; }
  // D(x); a NaN stays NaN.
  __device__ float divisor(float x) const {
    if (normalizer == Normalizer::add) return x + floor;
    return x < floor ? floor : x;
  }
};

// The dot product a . b by one warp; all lanes take part.
__device__ float product_of_rows(const float* a, const float* b, int64_t width, bool read) {
  float sum = 0;
  for (int64_t c = threadIdx.x; read && c < width; c += 32) sum += a[c] * b[c];
  return warp_sum(sum);
}

// One warp per row.
__global__ void divide_rows_by_products(Arguments a, float* y) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= a.rows) return;
  const bool read = a.valid(row);
  const int64_t keys = row * a.key_width, values = row * a.value_width;
  const float divisor =
      a.divisor(product_of_rows(a.queries + keys, a.sums + keys, a.key_width, read));
  for (int64_t c = threadIdx.x; c < a.value_width; c += 32) {
    y[values + c] = read ? a.numerators[values + c] / divisor : 0.0f;
  }
}

__global__ void divide_rows_by_products_backward(Arguments a, const float* dy, float* dnumerators,
                                                 float* dqueries, float* dsums) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= a.rows) return;
  const bool read = a.valid(row);
  const int64_t keys = row * a.key_width, values = row * a.value_width;
  const float x = product_of_rows(a.queries + keys, a.sums + keys, a.key_width, read);
  const float along = product_of_rows(dy + values, a.numerators + values, a.value_width, read);
  const float divisor = a.divisor(x);
  const bool clamped = a.normalizer == Normalizer::clamp && x < a.floor;
  const float dx = clamped ? 0.0f : -along / (divisor * divisor);
  for (int64_t c = threadIdx.x; c < a.value_width; c += 32) {
    dnumerators[values + c] = read ? dy[values + c] / divisor : 0.0f;
  }
  for (int64_t c = threadIdx.x; c < a.key_width; c += 32) {
    dqueries[keys + c] = read ? dx * a.sums[keys + c] : 0.0f;
    dsums[keys + c] = read ? dx * a.queries[keys + c] : 0.0f;
  }
}

Arguments arguments_of(const ProductDivision& d) {
  return {pointer<const float>(d.numerators),
          pointer<const float>(d.queries),
          pointer<const float>(d.sums),
          pointer_or_null<const uint8_t>(d.query_mask),
          d.queries.size(0) * d.queries.size(1) * d.queries.size(2),
          d.queries.size(2),
          d.queries.size(3),
          d.numerators.size(3),
          d.normalizer,
          static_cast<float>(d.floor)};
}

}  // namespace

void divide_by_products(const ProductDivision& division, const Tensor& y) {
  const Arguments a = arguments_of(division);
  launch({"divide_rows_by_products", blocks_for(a.rows, kWarps), dim3(32, kWarps)},
         divide_rows_by_products, a, pointer<float>(y));
}

void divide_by_products_backward(const ProductDivision& division, const Tensor& dy,
                                 const ProductDivisionGradients& gradients) {
  const Arguments a = arguments_of(division);
  launch({"divide_rows_by_products_backward", blocks_for(a.rows, kWarps), dim3(32, kWarps)},
         divide_rows_by_products_backward, a, pointer<const float>(dy),
         pointer<float>(gradients.numerators), pointer<float>(gradients.queries),
         pointer<float>(gradients.sums));
}

}  // namespace linnet::cuda
