// Register-tiled small products and row operations.
#include "attention/primitives/common/tile_gemm.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/simd.h"

namespace linnet {
namespace {

using simd::kLanes;
using simd::Vector;

// Multiply-adds, in a cache line for each thread (threads beyond their number share the last one),
// so that threads do not wait for each other.
struct alignas(64) Count {
  std::atomic<int64_t> value{0};
};
std::array<Count, 64> counts;

// Register tile: rows_of(columns) x columns vectors of sums, columns <= kColumns, held in registers
// over the whole of k. Narrow ones have more rows: it takes about ten sums to hide the time of an
// addition.
#if defined(__AVX512F__)
constexpr int kColumns = 4;
constexpr int rows_of(int columns) {
  return columns == 4 ? 6 : columns == 1 ? 16 : 8;
}
#else
constexpr int kColumns = 2;
constexpr int rows_of(int columns) {
  return columns == 2 ? 4 : 8;
}
#endif

template <typename T, bool kPartial>
Vector<T> load_edge(const T* p, int64_t n) {
  if constexpr (kPartial) return simd::load_partial(p, n);
  return simd::load(p);
}

// One register tile of c = from + alpha a b (null: nothing to add); `from` has the stride of c. The
// last vector of a row has `last` elements where kPartial.
template <typename T, int kM, int kN, bool kTransposedA, bool kPartial>
void register_tile(int64_t k, T alpha, const T* a, int64_t a_stride, const T* b, int64_t b_stride,
                   const T* from, T* c, int64_t c_stride, int64_t last) {
  Vector<T> sums[kM][kN] = {};
  for (int64_t p = 0; p < k; ++p) {
    Vector<T> row[kN];
    for (int j = 0; j < kN - 1; ++j) row[j] = simd::load(b + p * b_stride + j * kLanes<T>);
    row[kN - 1] = load_edge<T, kPartial>(b + p * b_stride + (kN - 1) * kLanes<T>, last);
    for (int i = 0; i < kM; ++i) {
      const T value = kTransposedA ? a[p * a_stride + i] : a[i * a_stride + p];
      for (int j = 0; j < kN; ++j) sums[i][j] += value * row[j];
    }
  }
  // Unrolled, so that the sums stay in registers.
#pragma GCC unroll 16
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) {
      const int64_t place = i * c_stride + j * kLanes<T>;
      Vector<T> value = alpha * sums[i][j];
      if (kPartial && j == kN - 1) {
        if (from != nullptr) value += simd::load_partial(from + place, last);
        simd::store_partial(c + place, value, last);
      } else {
        if (from != nullptr) value += simd::load(from + place);
        simd::store(c + place, value);
      }
    }
  }
}

template <typename T>
const T* offset(const T* from, int64_t count) {
  return from == nullptr ? nullptr : from + count;
}

// Which of a product's summands there are: all, or those on and beside the diagonal of a lower
// triangular a (an upper one, where it is transposed).
enum class Extent : uint8_t { full, triangle };

// All rows of c for one strip of kN vectors.
template <typename T, int kN, bool kTransposedA, Extent kExtent, bool kPartial>
void strip(int64_t m, int64_t k, T alpha, const T* a, int64_t a_stride, const T* b,
           int64_t b_stride, const T* from, T* c, int64_t c_stride, int64_t last) {
  const auto rows = [&]<int kM>(int64_t i) {
    constexpr bool kTriangle = kExtent == Extent::triangle;
    const int64_t begin = kTriangle && kTransposedA ? i : 0;
    const int64_t end = kTriangle && !kTransposedA ? i + kM : k;
    register_tile<T, kM, kN, kTransposedA, kPartial>(
        end - begin, alpha, kTransposedA ? a + begin * a_stride + i : a + i * a_stride + begin,
        a_stride, b + begin * b_stride, b_stride, offset(from, i * c_stride), c + i * c_stride,
        c_stride, last);
  };
  constexpr int kRows = rows_of(kN);
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) rows.template operator()<kRows>(i);
  if (kRows > 8 && i + 8 <= m) rows.template operator()<8>(i), i += 8;
  if (i + 4 <= m) rows.template operator()<4>(i), i += 4;
  if (i + 2 <= m) rows.template operator()<2>(i), i += 2;
  if (i < m) rows.template operator()<1>(i);
}

template <typename T, bool kTransposedA, Extent kExtent>
void product(int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t a_stride, const T* b,
             int64_t b_stride, const T* from, T* c, int64_t c_stride) {
  constexpr int64_t kLane = kLanes<T>;
  int64_t j = 0;
  for (; j + kColumns * kLane <= n; j += kColumns * kLane) {
    strip<T, kColumns, kTransposedA, kExtent, false>(m, k, alpha, a, a_stride, b + j, b_stride,
                                                     offset(from, j), c + j, c_stride, 0);
  }
  if (kColumns > 3 && j + 3 * kLane <= n) {
    strip<T, 3, kTransposedA, kExtent, false>(m, k, alpha, a, a_stride, b + j, b_stride,
                                              offset(from, j), c + j, c_stride, 0);
    j += 3 * kLane;
  }
  if (kColumns > 2 && j + 2 * kLane <= n) {
    strip<T, 2, kTransposedA, kExtent, false>(m, k, alpha, a, a_stride, b + j, b_stride,
                                              offset(from, j), c + j, c_stride, 0);
    j += 2 * kLane;
  }
  if (j + kLane <= n) {
    strip<T, 1, kTransposedA, kExtent, false>(m, k, alpha, a, a_stride, b + j, b_stride,
                                              offset(from, j), c + j, c_stride, 0);
    j += kLane;
  }
  if (j < n) {
    strip<T, 1, kTransposedA, kExtent, true>(m, k, alpha, a, a_stride, b + j, b_stride,
                                             offset(from, j), c + j, c_stride, n - j);
  }
}

template <typename T>
void product_any_a(int64_t m, int64_t n, int64_t k, T alpha, TileOperand<T> a, const T* b,
                   int64_t b_stride, const T* from, T* c, int64_t c_stride) {
  if (a.transposed) {
    product<T, true, Extent::full>(m, n, k, alpha, a.data, a.stride, b, b_stride, from, c,
                                   c_stride);
  } else {
    product<T, false, Extent::full>(m, n, k, alpha, a.data, a.stride, b, b_stride, from, c,
                                    c_stride);
  }
}

}  // namespace

void count_multiply_adds(int64_t n) {
  static std::atomic<size_t> threads{0};
  thread_local const size_t line = std::min(threads++, counts.size() - 1);
  std::atomic<int64_t>& value = counts[line].value;
  if (line + 1 == counts.size()) {
    value.fetch_add(n, std::memory_order_relaxed);
  } else {
    // Nobody else adds to it; an atomic addition would wait for all stores of the product before.
    value.store(value.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
}

template <typename T>
void tile_gemm(int64_t m, int64_t n, int64_t k, T alpha, TileOperand<T> a, TileOperand<T> b,
               Write write, T* c, int64_t c_stride) {
  count_multiply_adds(m * n * k);
  const T* from = write == Write::accumulate ? c : nullptr;
  if (!b.transposed || k == 0) {
    product_any_a(m, n, k, alpha, a, b.data, b.stride, from, c, c_stride);
    return;
  }
  constexpr int64_t kDepth = 128, kWidth = 64;
  alignas(64) T panel[kDepth * kWidth];
  for (int64_t p = 0; p < k; p += kDepth) {
    const int64_t depth = k - p < kDepth ? k - p : kDepth;
    const TileOperand<T> a_part{a.transposed ? a.data + p * a.stride : a.data + p, a.stride,
                                a.transposed};
    for (int64_t j = 0; j < n; j += kWidth) {
      const int64_t width = n - j < kWidth ? n - j : kWidth;
      chunked::transpose(b.data + j * b.stride + p, b.stride, width, depth, panel, kWidth);
      product_any_a(m, width, depth, alpha, a_part, panel, kWidth, p > 0 ? c + j : offset(from, j),
                    c + j, c_stride);
    }
  }
}

template <typename T>
void add_product(int64_t m, int64_t n, int64_t k, TileOperand<T> a, const T* b, int64_t b_stride,
                 const T* from, T* c, int64_t c_stride) {
  count_multiply_adds(m * n * k);
  product_any_a(m, n, k, T(1), a, b, b_stride, from, c, c_stride);
}

template <typename T>
void add_triangle_times(int64_t m, int64_t n, TileOperand<T> lower, const T* b, int64_t b_stride,
                        T* c, int64_t c_stride) {
  count_multiply_adds(m * (m + 1) / 2 * n);
  if (lower.transposed) {
    product<T, true, Extent::triangle>(m, n, m, T(1), lower.data, lower.stride, b, b_stride, c, c,
                                       c_stride);
  } else {
    product<T, false, Extent::triangle>(m, n, m, T(1), lower.data, lower.stride, b, b_stride, c, c,
                                        c_stride);
  }
}

double tile_multiply_adds() {
  double total = 0;
  for (const Count& count : counts) total += static_cast<double>(count.value.load());
  return total;
}

template <typename T>
int64_t vector_elements() {
  return kLanes<T>;
}

template <typename T>
T exp_row(const T* x, int64_t n, T shift, T* out) {
  Vector<T> total = {};
  int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) {
    const Vector<T> e = simd::exp<T>(simd::load(x + i) - shift);
    simd::store(out + i, e);
    total += e;
  }
  T tail_sum = 0;
  if (i < n) {
    const Vector<T> e = simd::exp<T>(simd::load_partial(x + i, n - i) - shift);
    simd::store_partial(out + i, e, n - i);
    for (int64_t lane = 0; lane < n - i; ++lane) tail_sum += e[lane];
  }
  return simd::sum<T>(total) + tail_sum;
}

template <typename T>
T max_row(const T* x, int64_t n) {
  T largest = -std::numeric_limits<T>::infinity();
  int64_t i = 0;
  if (n >= kLanes<T>) {
    Vector<T> best = simd::load(x);
    for (i = kLanes<T>; i + kLanes<T> <= n; i += kLanes<T>) {
      best = simd::maximum<T>(best, simd::load(x + i));
    }
    largest = simd::max<T>(best);
  }
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

template <typename T>
T sum_row(const T* x, int64_t n) {
  Vector<T> total = {};
  int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) total += simd::load(x + i);
  T tail_sum = 0;
  for (; i < n; ++i) tail_sum += x[i];
  return simd::sum<T>(total) + tail_sum;
}

template <typename T>
T dot_row(const T* x, const T* y, int64_t n) {
  Vector<T> total = {};
  int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) total += simd::load(x + i) * simd::load(y + i);
  T tail_sum = 0;
  for (; i < n; ++i) tail_sum += x[i] * y[i];
  return simd::sum<T>(total) + tail_sum;
}

template <typename T>
void axpy_row(int64_t n, T alpha, const T* x, T* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += alpha * x[i];
}

#define LINNET_INSTANTIATE(T)                                                                     \
  template void tile_gemm<T>(int64_t, int64_t, int64_t, T, TileOperand<T>, TileOperand<T>, Write, \
                             T*, int64_t);                                                        \
  template void add_product<T>(int64_t, int64_t, int64_t, TileOperand<T>, const T*, int64_t,      \
                               const T*, T*, int64_t);                                            \
  template void add_triangle_times<T>(int64_t, int64_t, TileOperand<T>, const T*, int64_t, T*,    \
                                      int64_t);                                                   \
  template int64_t vector_elements<T>();                                                          \
  template T exp_row<T>(const T*, int64_t, T, T*);                                                \
  template T max_row<T>(const T*, int64_t);                                                       \
  template T sum_row<T>(const T*, int64_t);                                                       \
  template T dot_row<T>(const T*, const T*, int64_t);                                             \
  template void axpy_row<T>(int64_t, T, const T*, T*);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
