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
  // Whether there is a mask, of which so many tokens all count. By all lanes of a warp.
  template <int tokens>
  __device__ __forceinline__ bool all_count() const {
    if (mask == nullptr || begin + tokens > view.T) return false;
    const uint8_t* entries = mask + row * view.T + begin;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool missing = false;
#pragma unroll
    for (int i = 0; i < tokens; i += 32) missing |= i + lane < tokens && entries[i + lane] == 0;
    return __any_sync(~0u, missing ? 1 : 0) == 0;
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

// Begins to copy all rows of a chunk; columns that it lacks are zeros.
template <int width, typename Team, int unrolled>
__device__ __forceinline__ void begin_all(AsyncCopies& copies, kernel_bf16* tile,
                                          const ReadPlace& from, bool has_columns) {
  using Part = TilePart<width, Team>;
  const int64_t step = Part::kRowStep * from.view.time_stride;
  const kernel_bf16* at = from.at(from.begin + Part::row(0), Part::column());
  kernel_bf16* to = tile + Part::row(0) * Part::kStride + Part::column();
#pragma unroll unrolled
  for (int i = 0; i < Part::kCount; ++i, at += step) {
    copies.copy(to + i * Part::kRowStep * Part::kStride, at, has_columns);
  }
}

// begin_copy() of a tile with rows that may not count.
template <int width, typename Team, int unrolled, typename Rows>
__device__ __forceinline__ uint32_t begin_edge(AsyncCopies& copies, kernel_bf16* tile,
                                               const ReadPlace& from, int filled,
                                               const Rows& rows) {
  using Part = TilePart<width, Team>;
  const bool all = rows.has_all() && from.template all_count<Team::kTokens>();
  const int row = Part::row(0), column = Part::column();
  const bool has_columns = from.has_column(column);
  if (filled > 0 && column < filled && !has_columns) return 0;
  if (all) {
    begin_all<width, Team, unrolled>(copies, tile, from, has_columns);
    return has_columns ? Part::kAll : 0;
  }
  const int64_t first = from.begin + row;
  const int left = has_columns ? rows_left(from.view.T - first) : 0;
  const int64_t step = Part::kRowStep * from.view.time_stride;
  const kernel_bf16* at = left > 0 ? from.at(first, column) : from.view.data;
  const uint8_t* valid =
      from.mask == nullptr ? nullptr : from.mask + from.row * from.view.T + first;
  uint32_t counts = 0;
#pragma unroll 1
  for (int i = 0; i < Part::kCount; ++i) {
    const int on = i * Part::kRowStep;
    const bool inside = on < left && rows.has(row + on) && (valid == nullptr || valid[on] != 0);
    copies.copy(tile + Part::row(i) * Part::kStride + column, at, inside);
    counts |= (inside ? 1u : 0u) << i;
    if (on + Part::kRowStep < left) at += step;
  }
  return counts;
}

// Begins to copy a chunk to `tile`; bit i of the result says whether part i of this thread counts.
// Columns that the chunk lacks and rows that `rows` lacks are zeros, but columns below `filled` are
// left to others. Whether all rows count is asked once: what else is asked for each row costs more
// than the copies. Where registers are scarce fewer parts are `unrolled`. By all threads of the
// team.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount,
          typename Rows = EveryRow>
__device__ __forceinline__ uint32_t begin_copy(AsyncCopies& copies, kernel_bf16* tile,
                                               const ReadPlace& from, int filled = 0,
                                               const Rows& rows = {}) {
  using Part = TilePart<width, Team>;
  if (!rows.has_all() || !from.has_rows(Team::kTokens)) {
    return begin_edge<width, Team, unrolled>(copies, tile, from, filled, rows);
  }
  const bool has_columns = from.has_column(Part::column());
  if (filled > 0 && Part::column() < filled && !has_columns) return 0;
  begin_all<width, Team, unrolled>(copies, tile, from, has_columns);
  return has_columns ? Part::kAll : 0;
}

// write_out() of all rows.
template <int width>
__device__ __forceinline__ void write_all(const kernel_bf16* rows, int stride, int lane,
                                          const TilePlace<kernel_bf16>& to) {
  constexpr int kStep = 32 / (width / 8);  // rows that a warp writes at once
  const int row = lane / (width / 8), column = lane % (width / 8) * 8;
  const int64_t step = kStep * to.view.time_stride;
  kernel_bf16* at = to.at(to.begin + row, column);
  const kernel_bf16* own = rows + row * stride + column;
#pragma unroll
  for (int on = 0; on < 16; on += kStep, at += step) {
    *reinterpret_cast<Eight*>(at) = *reinterpret_cast<const Eight*>(own + on * stride);
  }
}

// write_out() where rows may not count or are left out.
template <int width>
__device__ __forceinline__ void write_edge(const kernel_bf16* rows, int stride, int lane,
                                           const TilePlace<kernel_bf16>& to, int first, int end) {
  constexpr int kStep = 32 / (width / 8);
  const bool all = first <= 0 && end >= 16 && to.template all_count<16>();
  const int row = lane / (width / 8), column = lane % (width / 8) * 8;
  if (!to.has_column(column)) return;
  if (all) return write_all<width>(rows, stride, lane, to);
  const int64_t token = to.begin + row, step = kStep * to.view.time_stride;
  const int past = min(end, row + rows_left(to.view.T - token));
  kernel_bf16* at = to.at(token, column);
  const uint8_t* valid = to.mask == nullptr ? nullptr : to.mask + to.row * to.view.T + token;
#pragma unroll 1
  for (int on = 0; on < 16; on += kStep, at += step) {
    if (row + on < first || row + on >= past) continue;
    Eight elements = *reinterpret_cast<const Eight*>(rows + (row + on) * stride + column);
    if (valid != nullptr && valid[on] == 0) elements = {};
    *reinterpret_cast<Eight*>(at) = elements;
  }
}

// Writes rows [first, end) of a warp's 16 rows in shared memory to the tokens from to.begin on.
// Rows that do not count become zeros, those beyond the sequence are left out. By all lanes.
template <int width>
__device__ __forceinline__ void write_out(const kernel_bf16* rows, int stride, int lane,
                                          const TilePlace<kernel_bf16>& to, int first, int end) {
  if (first > 0 || end < 16 || !to.has_rows(16)) {
    return write_edge<width>(rows, stride, lane, to, first, end);
  }
  if (to.has_column(lane % (width / 8) * 8)) write_all<width>(rows, stride, lane, to);
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
