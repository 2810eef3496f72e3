#include "core/row_products.h"

#include <cmath>
#include <cstring>

#include "core/threads.h"

namespace linnet {
namespace {

// Terms k, k + 16, k + 32 ... of a sum are added in lane k of one vector.
constexpr int64_t kLanes = 16;
using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
// Columns that are computed together: as many sums are in flight as hide the latency of one.
constexpr int kColumns = 2;

float as_float(float value) {
  return value;
}
float as_float(bf16 value) {
  return static_cast<float>(value);
}

Vector load(const float* at) {
  Vector vector;
  std::memcpy(&vector, at, sizeof(vector));
  return vector;
}
Vector load(const bf16* at) {
  float values[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) values[lane] = as_float(at[lane]);
  return load(values);
}

// The two halves of a vector, added.
template <typename Half, typename Whole>
Half halved(const Whole& vector) {
  static_assert(2 * sizeof(Half) == sizeof(Whole));
  Half halves[2];
  std::memcpy(halves, &vector, sizeof(vector));
  return halves[0] + halves[1];
}

float sum_of(const Vector& vector) {
  using Eight = float __attribute__((vector_size(8 * sizeof(float))));
  using Four = float __attribute__((vector_size(4 * sizeof(float))));
  const Four four = halved<Four>(halved<Eight>(vector));
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// sums[row][column]: products of Rows rows of x with Columns rows of w, all k long.
template <int Rows, int Columns, typename Weight>
void dot_block(const float* x, const Weight* w, int64_t k, float (*sums)[kColumns]) {
  Vector lanes[Rows][Columns] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vector values[Rows];
    for (int row = 0; row < Rows; ++row) values[row] = load(x + row * k + i);
    for (int column = 0; column < Columns; ++column) {
      const Vector weights = load(w + column * k + i);
      for (int row = 0; row < Rows; ++row) lanes[row][column] += values[row] * weights;
    }
  }
  for (int row = 0; row < Rows; ++row) {
    for (int column = 0; column < Columns; ++column) {
      float rest = 0;
      for (int64_t j = i; j < k; ++j) {
        rest = std::fma(x[row * k + j], as_float(w[column * k + j]), rest);
      }
      sums[row][column] = sum_of(lanes[row][column]) + rest;
    }
  }
}

// Columns [first, first + Columns) of y [m,n] = x [m,k] w^T.
template <int Columns, typename Weight, typename Out>
void columns_of(const float* x, const Weight* w, Out* y, int64_t m, int64_t n, int64_t k,
                int64_t first, bool accumulate) {
  const Weight* weights = w + first * k;
  float sums[kMaxProductRows][kColumns];
  int64_t row = 0;
  for (; row + 4 <= m; row += 4) dot_block<4, Columns>(x + row * k, weights, k, sums + row);
  for (; row < m; ++row) dot_block<1, Columns>(x + row * k, weights, k, sums + row);
  for (row = 0; row < m; ++row) {
    for (int column = 0; column < Columns; ++column) {
      Out& out = y[row * n + first + column];
      out = Out(accumulate ? as_float(out) + sums[row][column] : sums[row][column]);
    }
  }
}

template <typename Weight, typename Out>
void products(const float* x, const Weight* w, Out* y, int64_t m, int64_t n, int64_t k,
              bool accumulate) {
  const int64_t blocks = n / kColumns;
  parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      columns_of<kColumns>(x, w, y, m, n, k, block * kColumns, accumulate);
    }
  });
  for (int64_t column = blocks * kColumns; column < n; ++column) {
    columns_of<1>(x, w, y, m, n, k, column, accumulate);
  }
}

template <typename Weight>
void products(const float* x, const Weight* w, const Tensor& c, int64_t m, int64_t n, int64_t k,
              bool accumulate) {
  if (c.dtype() == DType::f32) {
    products(x, w, c.data<float>(), m, n, k, accumulate);
  } else {
    products(x, w, c.data<bf16>(), m, n, k, accumulate);
  }
}

}  // namespace

void row_products(const Tensor& a, const Tensor& b, const Tensor& c, int64_t m, int64_t n,
                  int64_t k, bool accumulate) {
  require(m <= kMaxProductRows, "row_products: ", m, " rows");
  const Tensor x = a.to(DType::f32);
  if (b.dtype() == DType::f32) {
    products(x.data<float>(), b.data<float>(), c, m, n, k, accumulate);
  } else {
    products(x.data<float>(), b.data<bf16>(), c, m, n, k, accumulate);
  }
}

}  // namespace linnet
