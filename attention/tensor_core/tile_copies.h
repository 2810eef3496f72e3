// Tiles of a chunk of tokens on their way to shared memory and back: copies of 16 bytes, and
// results that become rows. For tensor-core kernels.
#pragma once

#include <type_traits>

#include "core/cuda/async_copy.h"
#include "core/cuda/mask.h"
#include "core/cuda/mma.h"
#include "core/sequence_view.h"

namespace linnet::cuda::tensor_core {

inline constexpr int kChunk = 64;
inline constexpr int kTileThreads = 128;
inline constexpr int kPadding = 8;  // of a tile's rows, so that they begin on different banks

// The warps of a block and the tokens of its chunks. A warp answers for 16 tokens, and where warps
// are more than that takes, for its share of the columns of their results.
template <int warps, int tokens>
struct Team {
  static constexpr int kThreads = 32 * warps, kWarps = warps, kTokens = tokens;
  static constexpr int kShares = warps * 16 / tokens;

  __device__ __forceinline__ static int first_token(int warp) { return warp % (tokens / 16) * 16; }
  __device__ __forceinline__ static int share(int warp) { return warp / (tokens / 16); }
};
using FourWarps = Team<kTileThreads / 32, kChunk>;
using EightWarps = Team<8, 32>;

// Columns of a tile of values, where a block has some of them only.
template <int M>
inline constexpr int kValueColumns = M < 64 ? M : 64;

// Calls body with the width of the tiles that hold so many features, a constant.
template <typename Body>
void for_width(int64_t features, const Body& body) {
  if (features <= 16) return body(std::integral_constant<int, 16>{});
  if (features <= 32) return body(std::integral_constant<int, 32>{});
  if (features <= 64) return body(std::integral_constant<int, 64>{});
  return body(std::integral_constant<int, 128>{});
}

// Prefetches.
__device__ __forceinline__ void prefetch([[maybe_unused]] const float* number) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(number));
#endif
}

// 16 bytes of a row.
struct alignas(16) Eight {
  uint32_t words[4];
};

// Where a part of a sequence is: the tokens of row `row` and head `head` from `begin` on, columns
// from `column` on. Tokens from `time` on, masked tokens and columns from `width` on count as
// zeros.
template <typename T>
struct TilePlace {
  SequenceView<T> view;
  const uint8_t* mask;  // [B,T]; null: all count
  int64_t row, begin;
  int head, column;

  __device__ __forceinline__ bool inside(int64_t token, int at) const {
    return token < view.T && column + at < view.K && is_set(mask, row * view.T + token);
  }
  // Whether so many tokens are all there, and no mask says whether they count.
  __device__ __forceinline__ bool has_rows(int tokens) const {
    return mask == nullptr && begin + tokens <= view.T;
  }
  __device__ __forceinline__ bool has_column(int at) const {
    return column + at < static_cast<int>(view.K);
  }
  __device__ __forceinline__ T* at(int64_t token, int offset) const {
    return view.data + row * view.batch_stride + token * view.time_stride +
           head * view.head_stride + column + offset;
  }
  // Index of a token in arrays [B,T,H].
  __device__ __forceinline__ int64_t number(int64_t token) const {
    return (row * view.T + token) * view.H + head;
  }
};
using ReadPlace = TilePlace<const kernel_bf16>;

// The part of a thread in a tile [tokens,width]: `kCount` times 8 neighbouring elements of a row,
// all in the same columns, of rows that are kRowStep apart.
template <int width, typename Team = FourWarps>
struct TilePart {
  static constexpr int kCount = Team::kTokens * width / 8 / Team::kThreads;
  static constexpr int kStride = width + kPadding;
  static constexpr int kRowStep = Team::kThreads / (width / 8);
  static constexpr uint32_t kAll = (uint32_t{1} << kCount) - 1;  // a bit for each

  __device__ __forceinline__ static int row(int i) {
    return static_cast<int>(threadIdx.x) / (width / 8) + i * kRowStep;
  }
  __device__ __forceinline__ static int column() {
    return static_cast<int>(threadIdx.x) % (width / 8) * 8;
  }
};

// A number of rows of which a chunk's are enough to know.
__device__ __forceinline__ int rows_left(int64_t count) {
  return count < kChunk ? static_cast<int>(count) : kChunk;
}

struct EveryRow {
  __device__ __forceinline__ bool has(int) const { return true; }
  __device__ __forceinline__ bool has_all() const { return true; }
};

// begin_copy() of a tile with rows that may not count. What is asked of them is asked of all of a
// thread's rows before the first is copied, so that mask entries arrive together.
template <int width, typename Team, typename Rows>
__device__ __forceinline__ uint32_t begin_edge(AsyncCopies& copies, kernel_bf16* tile,
                                               const ReadPlace& from, int filled,
                                               const Rows& rows) {
  using Part = TilePart<width, Team>;
  const int row = Part::row(0), column = Part::column();
  const bool has_columns = from.has_column(column);
  if (filled > 0 && column < filled && !has_columns) return 0;
  const int64_t first = from.begin + row;
  const int left = has_columns ? rows_left(from.view.T - first) : 0;
  const uint8_t* valid =
      from.mask == nullptr ? nullptr : from.mask + from.row * from.view.T + first;
  uint32_t counts = 0;
#pragma unroll
  for (int i = 0; i < Part::kCount; ++i) {
    const int on = i * Part::kRowStep;
    const bool inside = on < left && rows.has(row + on) && (valid == nullptr || valid[on] != 0);
    counts |= (inside ? 1u : 0u) << i;
  }
  const int64_t step = Part::kRowStep * from.view.time_stride;
  const kernel_bf16* at = left > 0 ? from.at(first, column) : from.view.data;
#pragma unroll 1
  for (int i = 0; i < Part::kCount; ++i) {
    copies.copy(tile + Part::row(i) * Part::kStride + column, at, (counts >> i & 1) != 0);
    if ((i + 1) * Part::kRowStep < left) at += step;
  }
  return counts;
}

// Begins to copy a chunk to `tile`; bit i of the result says whether part i of this thread counts.
// Columns that the chunk lacks and rows that `rows` lacks are zeros, but columns below `filled` are
// left to others. Whether all rows are there is asked once: what else is asked for each row costs
// more than the copies. Where registers are scarce fewer parts are `unrolled`.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount,
          typename Rows = EveryRow>
__device__ __forceinline__ uint32_t begin_copy(AsyncCopies& copies, kernel_bf16* tile,
                                               const ReadPlace& from, int filled = 0,
                                               const Rows& rows = {}) {
  using Part = TilePart<width, Team>;
  if (!rows.has_all() || !from.has_rows(Team::kTokens)) {
    return begin_edge<width, Team>(copies, tile, from, filled, rows);
  }
  const bool has_columns = from.has_column(Part::column());
  if (filled > 0 && Part::column() < filled && !has_columns) return 0;
  const int64_t step = Part::kRowStep * from.view.time_stride;
  const kernel_bf16* at = from.at(from.begin + Part::row(0), Part::column());
  kernel_bf16* to = tile + Part::row(0) * Part::kStride + Part::column();
#pragma unroll unrolled
  for (int i = 0; i < Part::kCount; ++i, at += step) {
    copies.copy(to + i * Part::kRowStep * Part::kStride, at, has_columns);
  }
  return has_columns ? Part::kAll : 0;
}

// write_out() where rows may not count or are left out; mask entries are asked for together.
template <int width>
__device__ __forceinline__ void write_edge(const kernel_bf16* rows, int stride, int lane,
                                           const TilePlace<kernel_bf16>& to, int first, int end) {
  constexpr int kStep = 32 / (width / 8);
  const int row = lane / (width / 8), column = lane % (width / 8) * 8;
  if (!to.has_column(column)) return;
  const int64_t token = to.begin + row, step = kStep * to.view.time_stride;
  const int past = min(end, row + rows_left(to.view.T - token));
  const uint8_t* valid = to.mask == nullptr ? nullptr : to.mask + to.row * to.view.T + token;
  uint32_t counts = 0;
#pragma unroll
  for (int on = 0; on < 16; on += kStep) {
    const bool is_valid = valid == nullptr || (row + on < past && valid[on] != 0);
    counts |= (is_valid ? 1u : 0u) << on;
  }
  kernel_bf16* at = to.at(token, column);
#pragma unroll 1
  for (int on = 0; on < 16; on += kStep, at += step) {
    if (row + on < first || row + on >= past) continue;
    Eight elements = *reinterpret_cast<const Eight*>(rows + (row + on) * stride + column);
    if ((counts >> on & 1) == 0) elements = {};
    *reinterpret_cast<Eight*>(at) = elements;
  }
}

// Writes rows [first, end) of a warp's 16 rows in shared memory to the tokens from to.begin on.
// Rows that do not count become zeros, those beyond the sequence are left out.
template <int width>
__device__ __forceinline__ void write_out(const kernel_bf16* rows, int stride, int lane,
                                          const TilePlace<kernel_bf16>& to, int first, int end) {
  constexpr int kStep = 32 / (width / 8);  // rows that a warp writes at once
  if (first > 0 || end < 16 || !to.has_rows(16)) {
    return write_edge<width>(rows, stride, lane, to, first, end);
  }
  const int row = lane / (width / 8), column = lane % (width / 8) * 8;
  if (!to.has_column(column)) return;
  const int64_t step = kStep * to.view.time_stride;
  kernel_bf16* at = to.at(to.begin + row, column);
  const kernel_bf16* own = rows + row * stride + column;
#pragma unroll
  for (int on = 0; on < 16; on += kStep, at += step) {
    *reinterpret_cast<Eight*>(at) = *reinterpret_cast<const Eight*>(own + on * stride);
  }
}

// A warp's 16 rows of results, columns 8 j and 8 j + 1 + ... in results[j], to `rows`, the same
// rows of a tile that no other warp reads any more.
template <int columns>
__device__ __forceinline__ void pack_rows(const ResultFragment (&results)[columns],
                                          kernel_bf16* rows, int stride, int lane) {
  __syncwarp();
#pragma unroll
  for (int j = 0; j < columns; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *word_at(rows, stride, lane, half, j) =
          pack(results[j].values[2 * half], results[j].values[2 * half + 1]);
    }
  }
  __syncwarp();
}

// Writes them to device memory by way of `rows`. Rows that do not count become zeros, those beyond
// the sequence are left out.
template <int width>
__device__ __forceinline__ void store_rows(const ResultFragment (&results)[width / 8],
                                           kernel_bf16* rows, int stride, int lane,
                                           const TilePlace<kernel_bf16>& to) {
  pack_rows(results, rows, stride, lane);
  write_out<width>(rows, stride, lane, to, 0, 16);
}

}  // namespace linnet::cuda::tensor_core
