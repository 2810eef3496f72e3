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

template <typename T, bool kAdd>
void scan_block(int64_t n, TileRows<T> x, TileRows<T> y, TileRows<T> z,
                const Vector<T>* state_before, Vector<T>* state_after, T* out, int64_t out_stride) {
  Vector<T> state[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) state[r] = state_before[r];
  for (int64_t t = 0; t < n; ++t) {
    const Vector<T> row = simd::load(y.data + t * y.stride);
    const T* written = x.data + t * x.stride;
    const T* read = z.data + t * z.stride;
    Vector<T> sums[2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      state[r] += written[r] * row;
      sums[r % 2] = r < 2 ? read[r] * state[r] : sums[r % 2] + read[r] * state[r];
    }
    T* to = out + t * out_stride;
    const Vector<T> sum = sums[0] + sums[1];
    simd::store(to, kAdd ? simd::load(to) + sum : sum);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) state_after[r] = state[r];
}

// The same rows from the last one to the first.
template <typename T>
TileRows<T> reversed(TileRows<T> rows, int64_t n) {
  return {rows.data + (n - 1) * rows.stride, -rows.stride};
}

}  // namespace

template <typename T>
void state_scan(ScanOrder order, int64_t n, int64_t rows, int64_t columns, TileRows<T> x,
                TileRows<T> y, TileRows<T> z, ScanFactors<T> factors, T* state, Write write, T* out,
                int64_t out_stride) {
  if (n == 0) return;
  count_multiply_adds(2 * n * rows * columns);
  if (order == ScanOrder::backward) {
    x = reversed(x, n);
    y = reversed(y, n);
    z = reversed(z, n);
    out += (n - 1) * out_stride;
    out_stride = -out_stride;
  }
  if (rows == 0 && write == Write::overwrite) {
    for (int64_t t = 0; t < n; ++t) std::fill_n(out + t * out_stride, columns, T(0));
  }
  for (int64_t r = 0; r < rows; r += kRows) {
    const bool add = r > 0 || write == Write::accumulate;
    for (int64_t c = 0; c < columns; c += kLanes<T>) {
      Vector<T> block[kRows];
      T* at = state + r * columns + c;
      const auto factor = [&](const T* all, int row) {
        return factors.of_rows ? simd::broadcast(all[r + row]) : simd::load(all + c);
      };
      for (int i = 0; i < kRows; ++i) {
        block[i] = simd::load(at + i * columns) * factor(factors.before, i);
      }
      const auto scan = add ? scan_block<T, true> : scan_block<T, false>;
      scan(n, {x.data + r, x.stride}, {y.data + c, y.stride}, {z.data + r, z.stride}, block, block,
           out + c, out_stride);
      for (int i = 0; i < kRows; ++i) {
        simd::store(at + i * columns, block[i] * factor(factors.after, i));
      }
    }
  }
}

template void state_scan<float>(ScanOrder, int64_t, int64_t, int64_t, TileRows<float>,
                                TileRows<float>, TileRows<float>, ScanFactors<float>, float*, Write,
                                float*, int64_t);
template void state_scan<double>(ScanOrder, int64_t, int64_t, int64_t, TileRows<double>,
                                 TileRows<double>, TileRows<double>, ScanFactors<double>, double*,
                                 Write, double*, int64_t);

}  // namespace linnet
