// Products with the weights of a band, without those outside it. A block is kBlock queries; query i
// of it sees the `reach` rows of keys that end with its own, reach a multiple of kBlock: of the
// rows [0, reach + kBlock) that the block's queries see together it sees rows (i, i + reach].
//
// Weights of a block are slots [reach, kBlock], one query per lane. Slot s < kBlock holds row s for
// lanes below s and row reach + s, which those lanes do not see, for the other lanes; later slots
// hold row s for all lanes. So every stored weight belongs to a key that its query sees.
#pragma once

#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/simd.h"

namespace linnet::lavo_pass_detail {

using chunked::kBlock;

namespace band {

#if defined(__AVX512F__)
inline constexpr int kColumns = 4;
#else
inline constexpr int kColumns = 2;
#endif
// Results of a product that are summed together.
inline constexpr int kRows = 4;

// Sums of kRows results, over kN vectors of columns: sums[m] += weights[m * kStride] * row.
template <typename T, int kN, int64_t kStride>
struct Sums {
  simd::Vector<T> sums[kRows][kN] = {};

  // For results [kFirst, kEnd).
  template <int kFirst = 0, int kEnd = kRows>
  void add(const T* weights, const T* row) {
    simd::Vector<T> columns[kN];
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) columns[j] = simd::load(row + j * simd::kLanes<T>);
#pragma GCC unroll 4
    for (int m = kFirst; m < kEnd; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j) sums[m][j] += weights[m * kStride] * columns[j];
    }
  }
  void store(T scale, Write write, T* out, int64_t stride) const {
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j) {
        T* to = out + m * stride + j * simd::kLanes<T>;
        const simd::Vector<T> value = scale * sums[m][j];
        simd::store(to, write == Write::accumulate ? value + simd::load(to) : value);
      }
    }
  }
};

// Calls compute.operator()<kN>(column) for strips of kN vectors that make up `columns`.
template <typename T, typename Compute>
void for_strips(int64_t columns, const Compute& compute) {
  constexpr int64_t kStrip = kColumns * simd::kLanes<T>;
  int64_t c = 0;
  for (; c + kStrip <= columns; c += kStrip) compute.template operator()<kColumns>(c);
  for (; c < columns; c += simd::kLanes<T>) compute.template operator()<1>(c);
}

// Slots [s, s + kSlots) below kBlock, of the lanes from `lane` on.
inline constexpr int64_t kSlots = 8;
template <typename T>
void paired_slots(int64_t s, int64_t lane, int64_t reach, int64_t depth, T scale, const T* rows,
                  int64_t stride, const T* transposed, int64_t transposed_stride, Write write,
                  T* out) {
  using simd::broadcast;
  using simd::Vector;
  const T* older = rows + s * stride;
  const T* newer = older + reach * stride;
  Vector<T> sums[kSlots] = {};
  for (int64_t c = 0; c < depth; ++c) {
    const Vector<T> query = simd::load(transposed + c * transposed_stride + lane);
#pragma GCC unroll 8
    for (int64_t m = 0; m < kSlots; ++m) {
      const int64_t at = m * stride + c;
      sums[m] += query * simd::first_lanes<T>(broadcast<T>(older[at]), s + m - lane,
                                              broadcast<T>(newer[at]));
    }
  }
#pragma GCC unroll 8
  for (int64_t m = 0; m < kSlots; ++m) {
    T* to = out + (s + m) * kBlock + lane;
    const Vector<T> value = scale * sums[m];
    simd::store(to, write == Write::accumulate ? value + simd::load(to) : value);
  }
}

}  // namespace band

// out[slot, lane] (+)= scale * row of the slot and lane . query of the lane. rows [reach + kBlock,
// depth], transposed [depth, kBlock], depth padded.
template <typename T>
void band_products(int64_t reach, int64_t depth, T scale, const T* rows, int64_t stride,
                   const T* transposed, int64_t transposed_stride, Write write, T* out) {
  for (int64_t lane = 0; lane < kBlock; lane += simd::kLanes<T>) {
    for (int64_t s = 0; s < kBlock; s += band::kSlots) {
      band::paired_slots(s, lane, reach, depth, scale, rows, stride, transposed, transposed_stride,
                         write, out);
    }
  }
  count_multiply_adds(kBlock * kBlock * depth);
  tile_gemm<T>(reach - kBlock, kBlock, depth, scale, {rows + kBlock * stride, stride},
               {transposed, transposed_stride}, write, out + kBlock * kBlock, kBlock);
}

// For every query i of a block: out[i] (+)= scale * sum of its weights times rows. rows [reach +
// kBlock, columns], out [kBlock, columns], columns padded.
template <typename T>
void band_gather(int64_t reach, int64_t columns, T scale, const T* weights, const T* rows,
                 int64_t stride, Write write, T* out, int64_t out_stride) {
  count_multiply_adds(kBlock * reach * columns);
  band::for_strips<T>(columns, [&]<int kN>(int64_t c) {
    for (int64_t i = 0; i < kBlock; i += band::kRows) {
      band::Sums<T, kN, 1> sums;
      const T* slots = weights + i;
      const auto row = [&](int64_t r) { return rows + r * stride + c; };
      sums.template add<0, 1>(slots + (i + 1) * kBlock, row(i + 1));
      sums.template add<0, 2>(slots + (i + 2) * kBlock, row(i + 2));
      sums.template add<0, 3>(slots + (i + 3) * kBlock, row(i + 3));
      for (int64_t r = i + 4; r < reach; ++r) sums.add(slots + r * kBlock, row(r));
      for (int64_t s = 0; s <= i; ++s) sums.add(slots + s * kBlock, row(reach + s));
      sums.template add<1>(slots + (i + 1) * kBlock, row(reach + i + 1));
      sums.template add<2>(slots + (i + 2) * kBlock, row(reach + i + 2));
      sums.template add<3>(slots + (i + 3) * kBlock, row(reach + i + 3));
      sums.store(scale, write, out + i * out_stride + c, out_stride);
    }
  });
}

// For every key i of a block: out[i] = scale * sum over the `reach` queries that see it, rows [i, i
// + reach), of weight times row. `weights` are those of the block itself and of the blocks of
// queries that follow. rows [reach + kBlock, columns], out [kBlock, columns], columns padded.
template <typename T>
void band_spread(int64_t reach, int64_t columns, T scale, const T* weights, const T* rows,
                 int64_t stride, T* out, int64_t out_stride) {
  count_multiply_adds(kBlock * reach * columns);
  const int64_t size = reach * kBlock, blocks = reach / kBlock;
  band::for_strips<T>(columns, [&]<int kN>(int64_t c) {
    for (int64_t i = 0; i < kBlock; i += band::kRows) {
      band::Sums<T, kN, kBlock> sums;
      const auto row = [&](int64_t r) { return rows + r * stride + c; };
      const T* own = weights + i * kBlock;
      sums.template add<0, 1>(own + i, row(i));
      sums.template add<0, 2>(own + i + 1, row(i + 1));
      sums.template add<0, 3>(own + i + 2, row(i + 2));
      for (int64_t lane = i + 3; lane < kBlock; ++lane) sums.add(own + lane, row(lane));
      for (int64_t b = 1; b < blocks; ++b) {
        const T* later = weights + b * size + (reach - b * kBlock + i) * kBlock;
        for (int64_t lane = 0; lane < kBlock; ++lane) {
          sums.add(later + lane, row(b * kBlock + lane));
        }
      }
      const T* last = own + blocks * size;
      for (int64_t lane = 0; lane < i; ++lane) sums.add(last + lane, row(reach + lane));
      sums.template add<1>(last + i, row(reach + i));
      sums.template add<2>(last + i + 1, row(reach + i + 1));
      sums.template add<3>(last + i + 2, row(reach + i + 2));
      sums.store(scale, Write::overwrite, out + i * out_stride + c, out_stride);
    }
  });
}

}  // namespace linnet::lavo_pass_detail
