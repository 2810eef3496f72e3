// Decay per channel inside a chunk of 64 tokens, for kernels on tensor cores. Internal to this
// folder.
//
// A weight sum_c q_ic k_jc exp(b_ic - b_jc), with b the sums of log-decays, is a product of two
// tiles where a boundary m lies between key and query: of q_i exp(b_i - b_m) and k_j exp(b_m -
// b_j), of which no exponent is above 0 (Yang et al. 2023, section 4). Factors exp(b_i - b_m) are
// products of the tokens' own factors a_t = exp(g_t), so that nothing is subtracted or divided, a
// token that leaves nothing harms no weight between others, and a segment begins with a factor of
// 0.
//
// The boundaries are those of a tree. Between the 16 tokens of two warps it is the begin of the
// later ones, and what decays between is applied in f32 to a warp's rows. Inside 16 tokens it is
// the middle of blocks of 16, 8, 4 and 2: one tile [16,64] for each, whose rows are keys in first
// halves and queries in second halves, and the product with its own transpose has the weights.
// Every factor of a product is rounded once, a warp's rows for other warps' tokens twice.
//
// A lane has two neighbouring channels of its warp's 16 tokens while it makes tiles.
#pragma once

#include "attention/primitives/linear_attention/cuda/fast_channels.h"
#include "attention/tensor_core/fast_math.h"
#include "attention/tensor_core/state_tile.h"
#include "core/cuda/kept_bits.h"

namespace linnet::cuda::linear_attention_fast::channels_detail {

using namespace tensor_core;

inline constexpr int kWidth = 64, kStride = kWidth + kPadding;
inline constexpr int kOwn = 16;  // tokens of a warp
inline constexpr size_t kTile = size_t{kChunk} * kStride;
using State = StateTile<kWidth, kWidth>;

// A thread's place, and the head and row of its block.
struct Worker {
  int warp, lane, head, row;

  __device__ __forceinline__ explicit Worker(int heads)
      : warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        head(static_cast<int>(blockIdx.x) % heads),
        row(static_cast<int>(blockIdx.x) / heads) {}
  // The same, opaque to the compiler: or else it keeps what depends on them in registers from chunk
  // to chunk.
  __device__ __forceinline__ Worker again() const {
    Worker result = *this;
    result.warp = recomputed(warp);
    result.lane = recomputed(lane);
    result.head = recomputed(head);
    result.row = recomputed(row);
    return result;
  }
  // Its warp's tokens of a chunk that begins at `token`, as rows of a tile and in device memory.
  __device__ __forceinline__ int own() const { return warp * kOwn * kStride; }
  template <typename T>
  __device__ __forceinline__ TilePlace<T> own(const SequenceView<T>& view, const uint8_t* mask,
                                              int64_t token) const {
    return {view, mask, row, token + warp * kOwn, head, 0};
  }
  template <typename T>
  __device__ __forceinline__ TilePlace<T> all(const SequenceView<T>& view, const uint8_t* mask,
                                              int64_t token) const {
    return {view, mask, row, token, head, 0};
  }
};

// Numbers of a lane's two channels.
struct alignas(8) Both {
  float low, high;
};
__device__ __forceinline__ Both operator*(const Both& a, const Both& b) {
  return {a.low * b.low, a.high * b.high};
}
__device__ __forceinline__ Both operator*(const Both& a, float b) {
  return {a.low * b, a.high * b};
}
__device__ __forceinline__ Both operator+(const Both& a, const Both& b) {
  return {a.low + b.low, a.high + b.high};
}
__device__ __forceinline__ Both unpacked(uint32_t word) {
  return {low_of(word), high_of(word)};
}
__device__ __forceinline__ uint32_t packed(const Both& x) {
  return pack(x.low, x.high);
}
// A lane's channels of row t of a tile.
__device__ __forceinline__ uint32_t* lane_word(kernel_bf16* rows, int t, int lane) {
  return reinterpret_cast<uint32_t*>(rows + t * kStride + 2 * lane);
}
__device__ __forceinline__ const Both& both_at(const float* numbers) {
  return *reinterpret_cast<const Both*>(numbers);
}

// The address `t` steps of so many bytes after `first`: one instruction.
template <typename E>
__device__ __forceinline__ E* stepped(E* first, int t, int step_bytes) {
  using Bytes = std::conditional_t<std::is_const_v<E>, const char, char>;
  return reinterpret_cast<E*>(reinterpret_cast<Bytes*>(first) + int64_t{t} * step_bytes);
}

// Prefetches the log-decays of a warp's 16 tokens from keys.begin on.
__device__ __forceinline__ void prefetch_factors(const float* log_decay, const ReadPlace& keys,
                                                 int lane) {
  const int64_t token = keys.begin + lane / 2;
  const int column = lane % 2 * 32;
  if (token < keys.view.T && column < keys.view.K) {
    prefetch(log_decay + keys.number(token) * keys.view.K + column);
  }
}

// The factors exp(g_t) of a warp's 16 tokens from keys.begin on: 1 beyond the sequence and where
// masked, 0 where a segment begins.
__device__ __forceinline__ void read_factors(const float* log_decay, const int32_t* segments,
                                             const ReadPlace& keys, int lane,
                                             Both (&factors)[kOwn]) {
  const int step = static_cast<int>(keys.view.H * keys.view.K * sizeof(float));
  const float* at = log_decay + keys.number(keys.begin) * keys.view.K + 2 * lane;
  if (segments == nullptr && keys.has_rows(kOwn) && keys.view.K == kWidth) {
#pragma unroll
    for (int t = 0; t < kOwn; ++t) factors[t] = both_at(stepped(at, t, step));
  } else {
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
#pragma unroll
    for (int t = 0; t < kOwn; ++t) {
      const int64_t token = keys.begin + t;
      factors[t] = {0, 0};
      if (keys.inside(token, 2 * lane)) factors[t] = both_at(stepped(at, t, step));
      if (begins_segment(segments, keys.row, keys.view.T, token)) factors[t] = {kNothing, kNothing};
    }
  }
#pragma unroll
  for (int t = 0; t < kOwn; ++t) factors[t] = {fast_exp(factors[t].low), fast_exp(factors[t].high)};
}

// A lane's channels of 16 rows as they are stored, in registers, which are too few for them in f32,
// or in their tile.
using LaneRows = uint32_t[kOwn];
struct TileRows {
  kernel_bf16* rows;
  int lane;
};
__device__ __forceinline__ Both row_of(const LaneRows& x, int t) {
  return unpacked(static_cast<uint32_t>(recomputed(static_cast<int>(x[t]))));
}
__device__ __forceinline__ Both row_of(const TileRows& x, int t) {
  return unpacked(*lane_word(x.rows, t, x.lane));
}
__device__ __forceinline__ void read_rows(kernel_bf16* rows, int lane, LaneRows& words) {
#pragma unroll
  for (int t = 0; t < kOwn; ++t) words[t] = *lane_word(rows, t, lane);
}

// Makes factors opaque to the compiler, so that it makes products of them where they are used and
// does not keep all of them.
__device__ __forceinline__ void use_again([[maybe_unused]] Both (&factors)[kOwn]) {
#if defined(__CUDA_ARCH__)
#pragma unroll
  for (int t = 0; t < kOwn; ++t) {
    asm volatile("" : "+f"(factors[t].low), "+f"(factors[t].high));
  }
#endif
}

// Rows [begin, end) <- x, times `scale` and the decay since the first of them, its own included.
// Returns that of all, times `scale`.
template <typename Rows>
__device__ __forceinline__ Both put_since(const Rows& x, int begin, int end, float scale,
                                          const Both (&factors)[kOwn], kernel_bf16* rows,
                                          int lane) {
  Both left{scale, scale};
#pragma unroll
  for (int t = begin; t < end; ++t) {
    left = left * factors[t];
    *lane_word(rows, t, lane) = packed(row_of(x, t) * left);
  }
  return left;
}
// Rows [begin, end) <- x times the decay after a token until the last of them. Returns that of all.
template <typename Rows>
__device__ __forceinline__ Both put_until(const Rows& x, int begin, int end,
                                          const Both (&factors)[kOwn], kernel_bf16* rows,
                                          int lane) {
  Both left = factors[end - 1];
  *lane_word(rows, end - 1, lane) = packed(row_of(x, end - 1));
#pragma unroll
  for (int t = end - 2; t >= begin; --t) {
    *lane_word(rows, t, lane) = packed(row_of(x, t) * left);
    left = left * factors[t];
  }
  return left;
}

// The tile of blocks of twice `half` tokens: keys in first halves, queries times `scale` in second
// ones, both times the decay to the block's middle.
template <int half>
__device__ __forceinline__ void put_level(const TileRows& q, const TileRows& k, float scale,
                                          Both (&factors)[kOwn], kernel_bf16* rows, int lane) {
  use_again(factors);
#pragma unroll
  for (int middle = half; middle < kOwn; middle += 2 * half) {
    put_until(k, middle - half, middle, factors, rows, lane);
    put_since(q, middle, middle + half, scale, factors, rows, lane);
  }
}

// The elements that such a tile has of a square of weights, whose rows are queries or (transposed)
// keys.
template <int half, bool transposed>
__device__ __forceinline__ void take_level(const kernel_bf16* rows, int lane,
                                           ResultFragment (&weights)[2]) {
  constexpr bool kFirst = half < 8 || !transposed, kSecond = half < 8 || transposed;
  ResultFragment products[2] = {};
  __syncwarp();  // the tile is there
#pragma unroll
  for (int i = 0; i < kWidth / 16; ++i) {
    const LeftFragment left = load_left(rows + i * 16, kStride, lane);
    // The same words are a right operand.
    if (kFirst) multiply(left, {{left.words[0], left.words[2]}}, products[0]);
    if (kSecond) multiply(left, {{left.words[1], left.words[3]}}, products[1]);
  }
  __syncwarp();  // nobody reads it any more
  const int row = lane / 4;
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    if constexpr (half == 8) {
      weights[transposed ? 1 : 0].values[transposed ? odd : 2 + odd] =
          products[transposed ? 1 : 0].values[transposed ? odd : 2 + odd];
    } else {
      const int column = lane % 4 * 2 + odd;
      const bool later = transposed ? row < column : row > column;
      if (later && (row ^ column) / half == 1) {
        weights[0].values[odd] = products[0].values[odd];
        weights[1].values[2 + odd] = products[1].values[2 + odd];
      }
    }
  }
}

// The weights of a warp's queries, times `scale`, for its own keys, or their transpose, by way of
// 16 rows of a tile that nobody else uses.
template <bool transposed>
__device__ __forceinline__ void weigh_own(const TileRows& q, const TileRows& k,
                                          Both (&factors)[kOwn], float scale, kernel_bf16* rows,
                                          ResultFragment (&weights)[2]) {
  const int lane = q.lane;
  ResultFragment products[2] = {};
#pragma unroll
  for (int i = 0; i < kWidth / 16; ++i) {
    const LeftFragment queries = load_left(q.rows + i * 16, kStride, lane);
    const RightFragments keys = load_right_transposed(k.rows + i * 16, kStride, lane);
    for (int half = 0; half < 2; ++half) multiply(queries, keys.halves[half], products[half]);
  }
  weights[0] = weights[1] = {};
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    if (lane / 4 != lane % 4 * 2 + odd) continue;  // a token's weight for itself
    weights[0].values[odd] = products[0].values[odd] * scale;
    weights[1].values[2 + odd] = products[1].values[2 + odd] * scale;
  }
  put_level<8>(q, k, scale, factors, rows, lane);
  take_level<8, transposed>(rows, lane, weights);
  put_level<4>(q, k, scale, factors, rows, lane);
  take_level<4, transposed>(rows, lane, weights);
  put_level<2>(q, k, scale, factors, rows, lane);
  take_level<2, transposed>(rows, lane, weights);
  put_level<1>(q, k, scale, factors, rows, lane);
  take_level<1, transposed>(rows, lane, weights);
  use_again(factors);
}

// A warp's 16 rows as left operands that decay from one warp's tokens to the next: kept in f32.
struct DecayingRows {
  float values[kWidth / 16][8];

  __device__ __forceinline__ void load(const kernel_bf16* rows, int lane) {
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
      const LeftFragment fragment = load_left(rows + i * 16, kStride, lane);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        values[i][2 * word] = low_of(fragment.words[word]);
        values[i][2 * word + 1] = high_of(fragment.words[word]);
      }
    }
  }
  __device__ __forceinline__ LeftFragment rounded(int i) const {
    LeftFragment result;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      result.words[word] = pack(values[i][2 * word], values[i][2 * word + 1]);
    }
    return result;
  }
  // `totals`: the decay of another warp's tokens, [64].
  __device__ __forceinline__ void decay(const float* totals, int lane) {
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Both left = both_at(totals + i * 16 + half * 8 + lane % 4 * 2);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          values[i][4 * half + 2 * row] *= left.low;
          values[i][4 * half + 2 * row + 1] *= left.high;
        }
      }
    }
  }
};

// Results [16,64] whose columns are channels, times the decay of a warp's tokens.
__device__ __forceinline__ void decay_columns(const float* totals, int lane,
                                              ResultFragment (&results)[kWidth / 8]) {
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    const Both left = both_at(totals + 8 * j + lane % 4 * 2);
    results[j].values[0] *= left.low;
    results[j].values[1] *= left.high;
    results[j].values[2] *= left.low;
    results[j].values[3] *= left.high;
  }
}

// square += left rows^T: columns of the square are 16 rows of a tile.
template <typename Left>
__device__ __forceinline__ void multiply_square(const Left& left, const kernel_bf16* rows, int lane,
                                                ResultFragment (&square)[2]) {
#pragma unroll
  for (int i = 0; i < kWidth / 16; ++i) {
    const LeftFragment fragment = left(i);
    const RightFragments right = load_right_transposed(rows + i * 16, kStride, lane);
    for (int half = 0; half < 2; ++half) multiply(fragment, right.halves[half], square[half]);
  }
}
// sums += left rows for 16 rows of a tile.
__device__ __forceinline__ void multiply_rows(const LeftFragment& left, const kernel_bf16* rows,
                                              int lane, ResultFragment (&sums)[kWidth / 8]) {
#pragma unroll
  for (int j = 0; j < kWidth / 16; ++j) {
    const RightFragments right = load_right(rows + j * 16, kStride, lane);
    for (int half = 0; half < 2; ++half) multiply(left, right.halves[half], sums[2 * j + half]);
  }
}

// S <- P S + left^T right over 16 tokens, from whose rows on `left` and `right` are and whose decay
// is P = totals; z <- P z + left^T 1. Sums begin at 0 as in StateTile::add.
template <bool with_normalizer>
__device__ __forceinline__ void add_own(State& state, const kernel_bf16* left,
                                        const kernel_bf16* right, const float* totals) {
  const float factors[2] = {totals[state.row(0, 0)], totals[state.row(0, 1)]};
  const LeftFragment lefts =
      load_left_transposed(left + state.row(0, 0) / 16 * 16, kStride, state.lane);
  const auto add = [&factors](ResultFragment& to, const ResultFragment& sums) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to.values[i] = to.values[i] * factors[i / 2] + sums.values[i];
  };
#pragma unroll
  for (int j = 0; j < kWidth / 16; ++j) {
    const RightFragments rights = load_right(right + j * 16, kStride, state.lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ResultFragment sums = {};
      multiply(lefts, rights.halves[half], sums);
      add(state.memory[0][2 * j + half], sums);
    }
  }
  if constexpr (with_normalizer) {
    ResultFragment sums = {};
    multiply(lefts, ones(), sums);
    for (int half = 0; half < 2; ++half) {  // all columns are equal
      float& mass = state.mass[0].values[2 * half];
      mass = mass * factors[half] + sums.values[2 * half];
    }
  }
}

}  // namespace linnet::cuda::linear_attention_fast::channels_detail
