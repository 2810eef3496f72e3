// Rows of queries and keys on their way to shared memory, and of results back, for the tensor-core
// kernels of block and listed attention. Internal to this folder and that of listed_attention.
//
// Rows say where each of them is: at(n) is null where nothing is to be read or written. Those of
// the numbers even() lie at equal steps; place(n) is where such a row is, counts(n) whether a mask
// leaves it. What is asked of every row costs more than its copy, so tiles are asked first.
#pragma once

#include "attention/primitives/block_attention/cuda/fast.h"
#include "attention/primitives/block_attention/cuda/fast_ranges.h"
#include "attention/tensor_core/tile_copies.h"

namespace linnet::cuda::block_attention_fast_detail {

using tensor_core::Eight;
using tensor_core::kPadding;
using tensor_core::kTileThreads;
static_assert(kTileRows == tensor_core::kChunk);

// Elements from one row of a tile of D columns to the next.
template <int D>
inline constexpr int kRowStride = D + kPadding;

template <typename T>
__device__ __forceinline__ T* row_of(const SequenceView<T>& view, int64_t b, int64_t n, int64_t h) {
  return view.data + b * view.batch_stride + n * view.time_stride + h * view.head_stride;
}
// The same, of numbers that are not negative: products of 64 bits then take fewer instructions.
template <typename T>
__device__ __forceinline__ T* row_inside(const SequenceView<T>& view, int b, int n, int h) {
  return row_of(view, static_cast<uint32_t>(b), static_cast<uint32_t>(n), static_cast<uint32_t>(h));
}

// Queries before `end`, at most T.
template <typename T>
struct QueryRows {
  const SequenceView<T>& view;
  const uint8_t* mask;
  int b, h, end, column = 0;

  __device__ __forceinline__ int64_t width() const { return view.K - column; }
  __device__ __forceinline__ int64_t step() const { return view.time_stride; }
  __device__ __forceinline__ T* somewhere() const { return view.data; }
  __device__ __forceinline__ Range even() const { return {0, end}; }
  __device__ __forceinline__ T* place(int t) const { return row_inside(view, b, t, h) + column; }
  __device__ __forceinline__ bool masked() const { return mask != nullptr; }
  __device__ __forceinline__ bool counts(int t) const { return is_set(mask, b * view.T + t); }
  __device__ __forceinline__ T* at(int t) const {
    return t < end && counts(t) ? place(t) : nullptr;
  }
};
template <typename T>
struct KeyRows {
  const SequenceView<T>&now, &past;
  const uint8_t *mask, *past_mask;
  int past_tokens, b, g, column = 0;

  __device__ __forceinline__ int64_t width() const { return now.K - column; }
  __device__ __forceinline__ int64_t step() const { return now.time_stride; }
  __device__ __forceinline__ T* somewhere() const { return now.data; }
  __device__ __forceinline__ Range even() const {
    if (now.data == nullptr) return {};
    return {past_tokens, past_tokens + static_cast<int>(now.T)};
  }
  __device__ __forceinline__ T* place(int n) const {
    return row_inside(now, b, n - past_tokens, g) + column;
  }
  __device__ __forceinline__ bool masked() const { return mask != nullptr; }
  __device__ __forceinline__ bool counts(int n) const {
    return is_set(mask, b * now.T + n - past_tokens);
  }
  __device__ __forceinline__ T* at(int n) const {
    return n < past_tokens ? row_or_null(past, past_mask, n)
                           : row_or_null(now, mask, n - past_tokens);
  }
  __device__ __forceinline__ T* row_or_null(const SequenceView<T>& view, const uint8_t* valid,
                                            int n) const {
    const bool inside = view.data != nullptr && n >= 0 && n < view.T;
    if (!inside || !is_set(valid, b * view.T + n)) return nullptr;
    return row_of(view, b, n, g) + column;
  }
};

template <typename Rows>
__device__ __forceinline__ bool are_even(const Rows& rows, int first, int count) {
  const Range even = rows.even();
  return first >= even.begin && first + count <= even.end;
}
// Whether `count` rows from `first` on lie at equal steps and no mask leaves one out; for whole
// warps.
template <typename Rows>
__device__ __forceinline__ bool are_whole(const Rows& rows, int first, int count) {
  if (!are_even(rows, first, count)) return false;
  if (!rows.masked()) return true;
  bool missing = false;
  for (int on = static_cast<int>(threadIdx.x) % 32; on < count; on += 32) {
    missing = missing || !rows.counts(first + on);
  }
  return __any_sync(~0u, missing) == 0;
}

// Begins to copy the rows from `first` on, half as many as there are threads. Where `whole` is not
// said, rows that are not read and columns beyond the width become zeros.
template <int D, typename Rows>
__device__ __forceinline__ void begin_copy(AsyncCopies& copies, kernel_bf16* tile, const Rows& rows,
                                           int first, bool whole, int threads = kTileThreads) {
  const int row = static_cast<int>(threadIdx.x) / (D / 8), step = threads / (D / 8);
  const int column = static_cast<int>(threadIdx.x) % (D / 8) * 8;
  kernel_bf16* to = tile + row * kRowStride<D> + column;
  if (whole && rows.width() >= D) {
    // Pointers go on by steps: addresses of every part would cost more than the products.
    const kernel_bf16* from = rows.place(first + row) + column;
#pragma unroll
    for (int i = 0; i < D / 16; ++i, from += step * rows.step()) {
      copies.copy(to + i * step * kRowStride<D>, from, true);
    }
    return;
  }
#pragma unroll 1  // registers
  for (int on = row; on < threads / 2; on += step, to += step * kRowStride<D>) {
    const kernel_bf16* from = column < rows.width() ? rows.at(first + on) : nullptr;
    const bool read = from != nullptr;
    copies.copy(to, read ? from + column : rows.somewhere(), read);
  }
}
template <int D, typename Rows>
__device__ __forceinline__ void begin_copy(AsyncCopies& copies, kernel_bf16* tile, const Rows& rows,
                                           int first) {
  begin_copy<D>(copies, tile, rows, first, are_whole(rows, first, kTileRows));
}

// Writes a warp's 16 rows of results times `factor`, those from `first` on, by way of its 16 rows
// of a tile that no other warp reads any more. `rows` have no mask.
template <int D, typename Rows>
__device__ __forceinline__ void store_rows(const ResultFragment (&results)[D / 8], float factor,
                                           kernel_bf16* tile, const Rows& rows, int first, int warp,
                                           int lane) {
  constexpr int kStride = kRowStride<D>;
  kernel_bf16* mine = tile + warp * 16 * kStride;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *word_at(mine, kStride, lane, half, j) =
          pack(results[j].values[2 * half] * factor, results[j].values[2 * half + 1] * factor);
    }
  }
  __syncwarp();
  constexpr int kStep = 32 / (D / 8);  // rows that a warp writes at once
  const int row = lane / (D / 8), column = lane % (D / 8) * 8;
  const kernel_bf16* from = mine + row * kStride + column;
  first += warp * 16;
  if (rows.width() >= D && are_even(rows, first, 16)) {
    kernel_bf16* at = rows.place(first + row) + column;
#pragma unroll
    for (int on = 0; on < 16; on += kStep, at += kStep * rows.step()) {
      *reinterpret_cast<Eight*>(at) = *reinterpret_cast<const Eight*>(from + on * kStride);
    }
    return;
  }
#pragma unroll 1
  for (int on = 0; on < 16; on += kStep) {
    kernel_bf16* at = column < rows.width() ? rows.at(first + row + on) : nullptr;
    if (at == nullptr) continue;
    *reinterpret_cast<Eight*>(at + column) = *reinterpret_cast<const Eight*>(from + on * kStride);
  }
}

}  // namespace linnet::cuda::block_attention_fast_detail
