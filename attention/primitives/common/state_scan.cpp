// Blocks of a state in registers, scanned along the tokens of a tile.
#include "attention/primitives/common/state_scan.h"

#include <algorithm>
#include <type_traits>

#include "attention/primitives/common/simd.h"

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

// Rows of a tile from one of their columns on. Without kElsewhere `prefetch` is null: its address
// then takes no registers of its own, of which there are too few.
template <typename E, bool kElsewhere>
class RowCursor {
 public:
  RowCursor(const TileRows<E>& rows, int64_t column)
      : data_(rows.data + column),
        stride_(rows.stride),
        ahead_(rows.ahead * rows.stride),
        prefetch_(rows.prefetch == nullptr ? data_ + ahead_ : rows.prefetch + column),
        prefetch_stride_(rows.prefetch == nullptr ? stride_ : rows.prefetch_stride) {}
  // Row t; prefetches what goes with it.
  E* at(int64_t t) const {
    E* row = data_ + t * stride_;
    constexpr int kWrite = std::is_const_v<E> ? 0 : 1;
    __builtin_prefetch(kElsewhere ? prefetch_ + t * prefetch_stride_ : row + ahead_, kWrite, 2);
    return row;
  }

 private:
  E* data_;
  int64_t stride_, ahead_;
  const E* prefetch_;
  int64_t prefetch_stride_;
};

// What happens to the state beside the sums: nothing, the sums of a tile apart, or factors of rows
// or columns before a token is added or after it is read.
enum class Step : uint8_t {
  running,
  of_tile,
  rows_before,
  rows_after,
  columns_before,
  columns_after
};

// The scan of the block of a state that begins with row r0 and column c0.
template <typename T, bool kAdd, Step kStep, bool kElsewhere>
void scan_block(int64_t n, int64_t r0, int64_t c0, const TileRows<const T>& x,
                const TileRows<const T>& y, const TileRows<const T>& z, T* block, int64_t stride,
                const TileRows<T>& out, const ScanDecay<T>& decay) {
  const RowCursor<const T, kElsewhere> xs(x, r0), ys(y, c0), zs(z, r0);
  const RowCursor<T, kElsewhere> outs(out, c0);
  constexpr bool kApart = kStep == Step::of_tile;
  constexpr bool kBefore = kStep == Step::rows_before || kStep == Step::columns_before;
  constexpr bool kAfter = kStep == Step::rows_after || kStep == Step::columns_after;
  constexpr bool kOfColumns = kStep == Step::columns_before || kStep == Step::columns_after;
  const T* factors = kBefore || kAfter ? decay.factors + (kOfColumns ? c0 : r0) : nullptr;
  // A row holds sums or, where kApart, before + sums.
  Vector<T> before[kRows], sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    before[r] = simd::load(block + r * stride);
    sums[r] = kApart ? Vector<T>{} : before[r];
  }
  for (int64_t t = 0; t < n; ++t) {
    const Vector<T> row = simd::load(ys.at(t));
    const T* written = xs.at(t);
    const T* read = zs.at(t);
    T* to = outs.at(t);
    Vector<T> of_columns;
    if constexpr (kOfColumns) of_columns = simd::load(factors);
    const auto scale = [&](int r) {
      if constexpr (kOfColumns) {
        sums[r] *= of_columns;
      } else {
        sums[r] *= factors[r];
      }
    };
    Vector<T> parts[2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kBefore) scale(r);
      sums[r] += written[r] * row;
      const Vector<T> held = kApart ? before[r] + sums[r] : sums[r];
      parts[r % 2] = r < 2 ? read[r] * held : parts[r % 2] + read[r] * held;
      if constexpr (kAfter) scale(r);
    }
    const Vector<T> all = parts[0] + parts[1];
    simd::store(to, kAdd ? simd::load(to) + all : all);
    if constexpr (kBefore || kAfter) factors += decay.stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    T* held = block + r * stride;
    // Loaded again: otherwise g++ would keep it in registers beside the last token's read.
    simd::store(held, kApart ? simd::load(held) + sums[r] : sums[r]);
  }
}

template <typename T, bool kAdd>
auto choose(Step step, bool elsewhere) {
  switch (step) {
    case Step::running:
      return elsewhere ? scan_block<T, kAdd, Step::running, true>
                       : scan_block<T, kAdd, Step::running, false>;
    case Step::of_tile:
      return elsewhere ? scan_block<T, kAdd, Step::of_tile, true>
                       : scan_block<T, kAdd, Step::of_tile, false>;
    case Step::rows_before:
      return scan_block<T, kAdd, Step::rows_before, true>;
    case Step::rows_after:
      return scan_block<T, kAdd, Step::rows_after, true>;
    case Step::columns_before:
      return scan_block<T, kAdd, Step::columns_before, true>;
    case Step::columns_after:
      break;
  }
  return scan_block<T, kAdd, Step::columns_after, true>;
}

template <typename T>
Step step_of(ScanOrder order, ScanSums sums, const ScanDecay<T>& decay) {
  if (decay.factors == nullptr) {
    return sums == ScanSums::running ? Step::running : Step::of_tile;
  }
  if (order == ScanOrder::forward) {
    return decay.of_columns ? Step::columns_before : Step::rows_before;
  }
  return decay.of_columns ? Step::columns_after : Step::rows_after;
}

// The same rows from the last one to the first.
template <typename E>
TileRows<E> reversed(const TileRows<E>& rows, int64_t n) {
  const E* prefetch =
      rows.prefetch == nullptr ? nullptr : rows.prefetch + (n - 1) * rows.prefetch_stride;
  return {rows.data + (n - 1) * rows.stride, -rows.stride, rows.ahead, prefetch,
          -rows.prefetch_stride};
}

}  // namespace

template <typename T>
void state_scan(ScanOrder order, int64_t n, int64_t rows, int64_t columns, TileRows<const T> x,
                TileRows<const T> y, TileRows<const T> z, T* state, Write write, TileRows<T> out,
                ScanSums sums, ScanDecay<T> decay) {
  if (n == 0) return;
  count_multiply_adds(2 * n * rows * columns);
  if (order == ScanOrder::backward) {
    x = reversed(x, n);
    y = reversed(y, n);
    z = reversed(z, n);
    out = reversed(out, n);
    if (decay.factors != nullptr) decay.factors += (n - 1) * decay.stride;
    decay.stride = -decay.stride;
  }
  for (int64_t t = 0; t < n && rows == 0 && write == Write::overwrite; ++t) {
    std::fill_n(out.data + t * out.stride, columns, T(0));
  }
  const bool elsewhere = x.prefetch != nullptr || y.prefetch != nullptr || z.prefetch != nullptr ||
                         out.prefetch != nullptr;
  const Step step = step_of(order, sums, decay);
  for (int64_t r = 0; r < rows; r += kRows) {
    const bool add = r > 0 || write == Write::accumulate;
    const auto scan = add ? choose<T, true>(step, elsewhere) : choose<T, false>(step, elsewhere);
    for (int64_t c = 0; c < columns; c += kLanes<T>) {
      scan(n, r, c, x, y, z, state + r * columns + c, columns, out, decay);
    }
  }
}

#define LINNET_INSTANTIATE(T)                                                               \
  template void state_scan<T>(ScanOrder, int64_t, int64_t, int64_t, TileRows<const T>,      \
                              TileRows<const T>, TileRows<const T>, T*, Write, TileRows<T>, \
                              ScanSums, ScanDecay<T>);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
