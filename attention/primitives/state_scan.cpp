// Blocks of a state in registers, walked along the tokens of a tile.
#include "attention/primitives/state_scan.h"

#include <algorithm>

#include "attention/primitives/simd.h"

namespace linnet {
namespace {

using simd::kLanes;
using simd::Vector;

// Rows of the state that are in registers at once, a vector each; the read of a token is made in
// two sums.
#if defined(__AVX512F__)
constexpr int kRows = 16;
#else
constexpr int kRows = 8;
#endif

// Asks for what lies `ahead` numbers behind a row.
template <bool kWrite, typename T>
void ask(const T* row, int64_t ahead) {
  __builtin_prefetch(row + ahead, kWrite ? 1 : 0, 2);
}

template <typename T, bool kAdd>
void scan_block(int64_t n, TileRows<const T> x, TileRows<const T> y, TileRows<const T> z, T* block,
                int64_t stride, TileRows<T> out) {
  const int64_t x_ahead = x.ahead * x.stride, y_ahead = y.ahead * y.stride,
                z_ahead = z.ahead * z.stride, out_ahead = out.ahead * out.stride;
  Vector<T> state[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) state[r] = simd::load(block + r * stride);
  for (int64_t t = 0; t < n; ++t) {
    const Vector<T> row = simd::load(y.data + t * y.stride);
    const T* written = x.data + t * x.stride;
    const T* read = z.data + t * z.stride;
    T* to = out.data + t * out.stride;
    ask<false>(written, x_ahead);
    ask<false>(y.data + t * y.stride, y_ahead);
    ask<false>(read, z_ahead);
    ask<true>(to, out_ahead);
    Vector<T> sums[2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      state[r] += written[r] * row;
      sums[r % 2] = r < 2 ? read[r] * state[r] : sums[r % 2] + read[r] * state[r];
    }
    const Vector<T> sum = sums[0] + sums[1];
    simd::store(to, kAdd ? simd::load(to) + sum : sum);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) simd::store(block + r * stride, state[r]);
}

// The same rows from the last one to the first.
template <typename E>
TileRows<E> reversed(TileRows<E> rows, int64_t n) {
  return {rows.data + (n - 1) * rows.stride, -rows.stride, rows.ahead};
}
// Those from one of their columns on.
template <typename E>
TileRows<E> from(TileRows<E> rows, int64_t column) {
  return {rows.data + column, rows.stride, rows.ahead};
}

}  // namespace

template <typename T>
void state_scan(ScanOrder order, int64_t n, int64_t rows, int64_t columns, TileRows<const T> x,
                TileRows<const T> y, TileRows<const T> z, T* state, Write write, TileRows<T> out) {
  if (n == 0) return;
  count_multiply_adds(2 * n * rows * columns);
  if (order == ScanOrder::backward) {
    x = reversed(x, n);
    y = reversed(y, n);
    z = reversed(z, n);
    out = reversed(out, n);
  }
  for (int64_t t = 0; t < n && rows == 0 && write == Write::overwrite; ++t) {
    std::fill_n(out.data + t * out.stride, columns, T(0));
  }
  for (int64_t r = 0; r < rows; r += kRows) {
    const bool add = r > 0 || write == Write::accumulate;
    const auto scan = add ? scan_block<T, true> : scan_block<T, false>;
    for (int64_t c = 0; c < columns; c += kLanes<T>) {
      scan(n, from(x, r), from(y, c), from(z, r), state + r * columns + c, columns, from(out, c));
    }
  }
}

#define LINNET_INSTANTIATE(T)                                                          \
  template void state_scan<T>(ScanOrder, int64_t, int64_t, int64_t, TileRows<const T>, \
                              TileRows<const T>, TileRows<const T>, T*, Write, TileRows<T>);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
