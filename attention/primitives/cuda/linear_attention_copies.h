// Chunks of tokens on their way to shared memory and back, for kernels on tensor cores: copies of
// rows, features of them, results that become rows, and gradients of features that become those of
// what features are made of. Internal to attention/primitives/cuda.
//
// Re-weighted features have two halves, phi(x) cos and phi(x) sin, of K columns each: threads that
// copied the first K columns of x fill both.
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

// Asks for what is read soon.
__device__ __forceinline__ void prefetch([[maybe_unused]] const float* number) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(number));
#endif
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
  // Where numbers [B,T,H] have that of a token.
  __device__ __forceinline__ int64_t number(int64_t token) const {
    return (row * view.T + token) * view.H + head;
  }
};
using ReadPlace = TilePlace<const kernel_bf16>;

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

// Begins to copy a chunk to `tile`; bit i of the result says whether part i of this thread counts.
// Columns that the chunk lacks are zeros, but those below `filled` are left to others. Where
// registers are scarce fewer parts are `unrolled`, whose addresses stay in them.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount>
__device__ __forceinline__ uint32_t begin_copy(AsyncCopies& copies, kernel_bf16* tile,
                                               const ReadPlace& from, int filled = 0) {
  using Part = TilePart<width, Team>;
  uint32_t counts = 0;
#pragma unroll unrolled
  for (int i = 0; i < Part::kCount; ++i) {
    const int row = Part::row(i), column = Part::column(i);
    if (column < filled && from.column + column >= from.view.K) continue;
    const bool inside = from.inside(from.begin + row, column);
    copies.copy(tile + row * Part::kStride + column,
                inside ? from.at(from.begin + row, column) : from.view.data, inside);
    counts |= (inside ? 1u : 0u) << i;
  }
  return counts;
}

// Of what features are made: phi(scale x) of x with `width` columns, re-weighted where there are
// proportions [B,T,H].
struct FeatureSource {
  FeatureMap map;
  float scale;
  const float* proportions;
  int width;

  __host__ __device__ int features() const { return proportions == nullptr ? width : 2 * width; }
  // Whether a column holds sines.
  __device__ __forceinline__ bool is_second_half(int column) const {
    return width <= column && column < features();
  }
  __device__ __forceinline__ Turn turn(int64_t number) const {
    return proportions == nullptr ? Turn{1, 0} : turn_of(proportions[number]);
  }
  // The same of a row that is a sequence of its own, whose first proportion has that number.
  __device__ __forceinline__ FeatureSource of_row(int64_t first) const {
    return {map, scale, proportions == nullptr ? nullptr : proportions + first, width};
  }
  // Whether gradients need x itself: features that are re-weighted do not show phi(x), and those of
  // elu near -1 not its slope.
  __device__ __forceinline__ bool hides_slopes() const {
    return proportions != nullptr || map == FeatureMap::elu;
  }
};

template <typename Call>
FeatureSource query_source(const Call& call) {
  return {call.options.feature_map, static_cast<float>(call.options.query_scale),
          call.query_proportions, static_cast<int>(call.q.K)};
}
template <typename Call>
FeatureSource key_source(const Call& call) {
  return {call.options.feature_map, 1, call.key_proportions, static_cast<int>(call.k.K)};
}

// Begins to copy a chunk of which features will be made, as begin_copy.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount>
__device__ __forceinline__ uint32_t begin_features(AsyncCopies& copies, kernel_bf16* tile,
                                                   const ReadPlace& from,
                                                   const FeatureSource& source) {
  if (source.proportions != nullptr && threadIdx.x < Team::kTokens) {
    const int64_t token = from.begin + threadIdx.x;
    if (token < from.view.T) prefetch(source.proportions + from.number(token));
  }
  return begin_copy<width, Team, unrolled>(copies, tile, from, source.features());
}

// x <- phi(scale x) factor_i in the parts of this thread, rounded once, and where re-weighted both
// halves of it; 0 in those that do not count. `from` is where x came from. Where registers are
// scarce fewer parts are `unrolled`, as in begin_copy.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount,
          typename Factor>
__device__ __forceinline__ void map_features(kernel_bf16* tile, uint32_t counts,
                                             const FeatureSource& source, const ReadPlace& from,
                                             const Factor& factor) {
  using Part = TilePart<width, Team>;
#pragma unroll unrolled
  for (int i = 0; i < Part::kCount; ++i) {
    const int row = Part::row(i), column = Part::column(i);
    if (source.is_second_half(column)) continue;
    auto* at = reinterpret_cast<Eight*>(tile + row * Part::kStride + column);
    Turn turn{0, 0};  // what does not count was copied as zeros, whose features are finite
    if ((counts >> i & 1) != 0) {
      turn = source.turn(from.number(from.begin + row));
      const float common = factor(i);
      turn.cosine *= common;
      turn.sine *= common;
    }
    Eight numbers = *at, sines;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t x = numbers.words[word];
      const float low = feature(source.map, low_of(x) * source.scale);
      const float high = feature(source.map, high_of(x) * source.scale);
      numbers.words[word] = pack(low * turn.cosine, high * turn.cosine);
      sines.words[word] = pack(low * turn.sine, high * turn.sine);
    }
    *at = numbers;
    if (source.proportions != nullptr && column < source.width) {
      *reinterpret_cast<Eight*>(tile + row * Part::kStride + column + source.width) = sines;
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
      *word_at(rows, stride, lane, half, j) =
          pack(results[j].values[2 * half], results[j].values[2 * half + 1]);
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
