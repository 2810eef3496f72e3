// Chunks of tokens on their way to shared memory and back, for kernels on tensor cores: copies of
// rows, features of them, results that become rows, and gradients of features that become those of
// what features are made of. Internal to attention/primitives/cuda.
//
// Re-weighted features have two halves, phi(x) cos and phi(x) sin, the second of which begins in
// the middle of a tile, whatever their width.
#pragma once

#include <type_traits>

#include "attention/primitives/cuda/linear_attention_features.h"
#include "attention/primitives/views.h"
#include "core/cuda/async_copy.h"
#include "core/cuda/mma.h"

namespace linnet::cuda::linear_attention_detail {

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

// 16 bytes of a row.
struct alignas(16) Eight {
  uint32_t words[4];
};

// Where a piece of a sequence is: the tokens of row `row` and head `head` from `begin` on, columns
// from `column` on. Tokens from `time` on, masked tokens and columns from `width` on count as
// zeros.
template <typename T>
struct TilePlace {
  SequenceView<T> view;
  const uint8_t* mask;  // [B,T]; null: all count
  int64_t row, begin;
  int head, column;

  __device__ __forceinline__ bool inside(int64_t token, int at) const {
    return token < view.T && column + at < view.K && valid(mask, row * view.T + token);
  }
  __device__ __forceinline__ T* at(int64_t token, int offset) const {
    return view.data + row * view.batch_stride + token * view.time_stride +
           head * view.head_stride + column + offset;
  }
};

// The part of a thread in a tile [tokens,width]: `kCount` times 8 neighbouring numbers of a row.
template <int width, typename Team = FourWarps>
struct TilePart {
  static constexpr int kCount = Team::kTokens * width / 8 / Team::kThreads;
  static constexpr int kStride = width + kPadding;

  __device__ __forceinline__ static int row(int i) { return place(i) / (width / 8); }
  __device__ __forceinline__ static int column(int i) { return place(i) % (width / 8) * 8; }

 private:
  __device__ __forceinline__ static int place(int i) {
    return i * Team::kThreads + static_cast<int>(threadIdx.x);
  }
};

// Begins to copy a chunk to `tile`, as far as `columns`; bit i of the result says whether part i of
// this thread counts. Where registers are scarce fewer parts are `unrolled`, whose addresses stay
// in them.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount>
__device__ __forceinline__ uint32_t begin_copy(AsyncCopies& copies, kernel_bf16* tile,
                                               const TilePlace<const kernel_bf16>& from,
                                               int columns = width) {
  using Part = TilePart<width, Team>;
  uint32_t counts = 0;
#pragma unroll unrolled
  for (int i = 0; i < Part::kCount; ++i) {
    const int row = Part::row(i), column = Part::column(i);
    if (column >= columns) continue;
    const bool inside = from.inside(from.begin + row, column);
    copies.copy(tile + row * Part::kStride + column,
                inside ? from.at(from.begin + row, column) : from.view.data, inside);
    counts |= (inside ? 1u : 0u) << i;
  }
  return counts;
}

// Of what features are made: phi(scale x), re-weighted where there are proportions [B,T,H].
struct FeatureSource {
  FeatureMap map;
  float scale;
  const float* proportions;

  template <typename T>
  __host__ __device__ int64_t features(const SequenceView<T>& x) const {
    return proportions == nullptr ? x.K : 2 * x.K;
  }
  // The same of a row that is a sequence of its own, whose first proportion has that number.
  __device__ __forceinline__ FeatureSource of_row(int64_t first) const {
    return {map, scale, proportions == nullptr ? nullptr : proportions + first};
  }
  // Where a tile's second half begins; 0: there are no halves.
  template <int width>
  __device__ __forceinline__ int half() const {
    return proportions == nullptr ? 0 : width / 2;
  }
  // Columns of a tile that copies fill.
  template <int width>
  __device__ __forceinline__ int copied() const {
    return proportions == nullptr ? width : width / 2;
  }
  // Whether gradients need x itself: features that are re-weighted do not show phi(x), and those of
  // elu near -1 not its slope.
  __device__ __forceinline__ bool hides_slopes() const {
    return proportions != nullptr || map == FeatureMap::elu;
  }
};

// x <- phi(scale x) factor_i in the parts of this thread, rounded once, re-weighted to both halves;
// 0 in those that do not count. The proportion of the chunk's first token is number `first`, that
// of the next one `heads` further.
template <int width, typename Team = FourWarps, typename Factor>
__device__ __forceinline__ void map_features(kernel_bf16* tile, uint32_t counts,
                                             const FeatureSource& source, int64_t first, int heads,
                                             const Factor& factor) {
  using Part = TilePart<width, Team>;
  const int copied = source.copied<width>();
#pragma unroll
  for (int i = 0; i < Part::kCount; ++i) {
    if (Part::column(i) >= copied) continue;
    auto* at = reinterpret_cast<Eight*>(tile + Part::row(i) * Part::kStride + Part::column(i));
    const bool inside = (counts >> i & 1) != 0;
    Turn turn{factor(i), 0};
    if (inside && source.proportions != nullptr) {
      turn = turn_of(source.proportions[first + Part::row(i) * heads]);
      turn.cosine *= factor(i);
      turn.sine *= factor(i);
    }
    Eight numbers = *at, sines;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t x = numbers.words[word];
      const float low = feature(source.map, low_of(x) * source.scale);
      const float high = feature(source.map, high_of(x) * source.scale);
      numbers.words[word] = inside ? pack(low * turn.cosine, high * turn.cosine) : 0;
      sines.words[word] = inside ? pack(low * turn.sine, high * turn.sine) : 0;
    }
    *at = numbers;
    if (copied < width) {
      *reinterpret_cast<Eight*>(tile + Part::row(i) * Part::kStride + Part::column(i) + copied) =
          sines;
    }
  }
}

// Writes a warp's 16 rows of results, columns 8 j and 8 j + 1 + ... in results[j], to device memory
// by way of `rows`, the same rows of a tile that no other warp reads any more. Rows that do not
// count become zeros, those beyond the sequence are left out.
template <int width>
__device__ __forceinline__ void store_rows(const ResultFragment (&results)[width / 8],
                                           kernel_bf16* rows, int stride, int lane,
                                           const TilePlace<kernel_bf16>& to) {
  __syncwarp();
#pragma unroll
  for (int j = 0; j < width / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto* at =
          reinterpret_cast<uint32_t*>(rows + (lane / 4 + 8 * half) * stride + 8 * j + lane % 4 * 2);
      *at = pack(results[j].values[2 * half], results[j].values[2 * half + 1]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < width / 16; ++i) {
    const int place = i * 32 + lane, row = place / (width / 8), column = place % (width / 8) * 8;
    const int64_t token = to.begin + row;
    if (token >= to.view.T || to.column + column >= to.view.K) continue;
    Eight numbers = *reinterpret_cast<const Eight*>(rows + row * stride + column);
    if (!to.inside(token, column)) numbers = {};
    *reinterpret_cast<Eight*>(to.at(token, column)) = numbers;
  }
}

}  // namespace linnet::cuda::linear_attention_detail
