// Parts of the backward pass of LAVO's window (lavo_pass_window_backward.cu): dQ of queries, dK and
// dV of keys, and the gradients of the bias. Internal to attention/lavo/cuda.
#pragma once

#include "attention/lavo/cuda/lavo_pass_dropout.h"
#include "attention/lavo/cuda/lavo_pass_tiles.h"

namespace linnet::cuda::lavo_pass_fast {

// Distances between squares of keys and squares of queries that see them, from 0.
__host__ __device__ inline int square_distances(int64_t window) {
  return static_cast<int>((window + 14) / 16) + 1;
}

template <int D>
inline constexpr bool kTwoTeams = D > 64;  // of four warps: dV and dQ, dK
template <int D>
using Warps = Team<kTwoTeams<D> ? 8 : 4, kChunk>;

template <int D>
struct Layout {
  static constexpr int kStride = D + kPadding;
  static constexpr int kTile = kChunk * kStride;
  static constexpr int kOutColumns = D < 64 ? D : 64;
  static constexpr int kOutStride = kOutColumns + kPadding;
  static_assert(kTwoTeams<D> || kOutColumns == D);
  __host__ __device__ Layout(SharedArena& arena, int64_t window, int stages)
      : dq(arena.take<kernel_bf16>(kTile)),
        out(kTwoTeams<D> ? arena.take<kernel_bf16>(size_t{Warps<D>::kWarps} * 16 * kOutStride)
                         : dq),
        bias(arena.take<float>(kWidestWindow)),
        log_sum_exp(arena.take<float>(kChunk)),
        along(arena.take<float>(kChunk)),
        reaches(arena.take<int>(kChunk)),
        flags(arena.take<uint32_t>(2 * kFlagWords)),
        k(arena.take<kernel_bf16>(static_cast<size_t>(2 * stages + 1) * 2 * kTile)),
        v(k + kTile),
        q(k + 4 * kTile),
        df(q + kTile),
        dbias(arena.take<float>(static_cast<size_t>(4 * square_distances(window)) * 256)) {}
  kernel_bf16* dq;            // the memory's part of dq, then results on their way out
  kernel_bf16* out;           // of each warp: dK and dV on their way out, so many columns at a time
  float *bias, *log_sum_exp;  // by distance, of each token; in units of log 2
  float* along;
  int* reaches;
  uint32_t* flags;  // of the chunk and of the one before
  // Pairs of tiles, of k and v for two chunks and of q and df for one; then, where there are two
  // stages, of q and df for another one, of k and v for a third.
  kernel_bf16 *k, *v, *q, *df;
  float* dbias;  // of each warp, [distance between squares][8][32 lanes]

  // Where a chunk is, from q and df and from k and v on.
  __device__ __forceinline__ static int place_of_queries(unsigned chunk, int stages) {
    return stages == 1 ? 0 : static_cast<int>(chunk % 2) * 2 * kTile;
  }
  __device__ __forceinline__ static int place_of_keys(unsigned chunk, int stages) {
    const int pair = static_cast<int>(stages == 1 ? chunk % 2 : chunk % 3);
    return (pair + (pair & 2)) * 2 * kTile;
  }
};

// Of a chunk's tokens, as they were left in device memory; of token number `thread`.
struct Statistics {
  float log_sum_exp, df_dot_f;

  // Nothing waits for them.
  __device__ __forceinline__ void load(const WindowBackward& call, int64_t row, int64_t token,
                                       int head) {
    const SequenceView<const kernel_bf16>& q = call.memory.q;
    const bool inside = token < q.T;
    const int64_t at = (row * q.T + token) * q.H + head;
    log_sum_exp = inside ? call.log_sum_exp[at] : -kNothing;
    df_dot_f = inside ? call.df_dot_f[at] : 0.0f;
  }
};

// Begins to copy 16 rows that no other warp looks at.
template <int D>
__device__ __forceinline__ void begin_own_rows(AsyncCopies& copies, kernel_bf16* rows, int lane,
                                               const TilePlace<const kernel_bf16>& from) {
  constexpr int kStride = Layout<D>::kStride, kStep = 32 / (D / 8);
  const int row = lane / (D / 8), column = lane % (D / 8) * 8;
  kernel_bf16* to = rows + row * kStride + column;
  if (from.has_rows(16)) {
    const int64_t step = kStep * from.view.time_stride;
    const kernel_bf16* at = from.at(from.begin + row, column);
#pragma unroll
    for (int on = 0; on < 16; on += kStep, at += step) {
      copies.copy(to + on * kStride, at, from.has_column(column));
    }
    return;
  }
#pragma unroll 1
  for (int on = 0; on < 16; on += kStep) {
    const bool inside = from.inside(from.begin + row + on, column);
    copies.copy(to + on * kStride, inside ? from.at(from.begin + row + on, column) : from.view.data,
                inside);
  }
}

// A square of 16 rows and 16 columns, of which one side is queries and the other keys: logits x
// become P, their gradients dP become dS. place(i) is the chunk's query of number i, and its key,
// which counts where that bit of `counted` is set.
template <int D, typename Place>
__device__ __forceinline__ void through_softmax(const Layout<D>& shared, uint32_t counted,
                                                float scale, const Place& place,
                                                ResultFragment (&x)[2], ResultFragment (&dx)[2]) {
  scale *= kLog2E;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    int t, key, bit;
    place(i, t, key, bit);
    const int distance = t - key;
    const bool seen = Sight::reaches(distance, shared.reaches[t]) & ((counted >> bit & 1) != 0);
    float& weight = x[i / 4].values[i % 4];
    float& gradient = dx[i / 4].values[i % 4];
    weight = fast_exp2(scale * weight + shared.bias[seen ? distance : 0] - shared.log_sum_exp[t]);
    if (!seen) weight = 0;
    gradient = weight * (gradient - shared.along[t]);
  }
}

// Where a chunk is in the tiles: its queries, its keys, and the keys before them.
struct Places {
  int queries, keys, before;
};

// dQ of a warp's queries, and the gradient of the bias from them.
template <int D>
__device__ __forceinline__ void through_queries(const Layout<D>& shared, const Places& places,
                                                const Chunk& chunk, const Sight& sight,
                                                const WindowDraws& draws, int warp, int lane,
                                                ResultFragment (&dq)[D / 8]) {
  constexpr int kStride = Layout<D>::kStride;
  TokenRows<D> queries, outputs;
  queries.load(shared.q + places.queries, warp, lane);
  outputs.load(shared.df + places.queries, warp, lane);
  float* dbias = shared.dbias + warp * square_distances(chunk.window) * 256 + lane;
#pragma unroll 1
  for (int square = max(sight.history, warp * 16 - chunk.window + 1) >> 4; square <= warp;
       ++square) {
    const int rows = (square < 0 ? places.before : places.keys) + (square & 3) * 16 * kStride;
    const uint32_t kept = draws.in.drops ? draws.of_queries(warp * 16, square * 16, lane) : 0;
    ResultFragment x[2] = {}, dx[2] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments keys = load_right_transposed(shared.k + rows + i * 16, kStride, lane);
      const RightFragments values = load_right_transposed(shared.v + rows + i * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(queries.parts[i], keys.halves[half], x[half]);
        multiply(outputs.parts[i], values.halves[half], dx[half]);
      }
    }
    if (draws.in.drops) WindowDraws::drop(kept, draws.dropout.keep, dx);
    through_softmax<D>(
        shared, sight.counted_in(chunk, square) >> lane % 4 * 2, draws.in.scale,
        [&](int i, int& t, int& key, int& bit) {
          t = warp * 16 + i % 4 / 2 * 8 + lane / 4;
          bit = i / 4 * 8 + i % 2;
          key = square * 16 + lane % 4 * 2 + bit;
        },
        x, dx);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      dbias[(warp - square) * 256 + i * 32] += dx[i / 4].values[i % 4];
    }
    const LeftFragment gradients = as_left(dx[0], dx[1]);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      const RightFragments keys = load_right(shared.k + rows + j * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply(gradients, keys.halves[half], dq[2 * j + half]);
    }
  }
}

// Adds to dK and dV (not yet scaled) of a warp's keys, those of the chunk or of the one before it
// (shift 0 or -64), the terms from the chunk's queries. Where only one of the two is made, the
// other is not looked at.
template <int D, bool has_dk, bool has_dv>
__device__ __forceinline__ void through_keys(const Layout<D>& shared, const Places& places,
                                             int shift, const Chunk& chunk, const Sight& sight,
                                             const WindowDraws& draws, int warp, int lane,
                                             [[maybe_unused]] ResultFragment (&dk)[D / 8],
                                             [[maybe_unused]] ResultFragment (&dv)[D / 8]) {
  constexpr int kStride = Layout<D>::kStride;
  const int first = shift + warp * 16;  // of the keys
  const int last = min(kChunk - 1, first + 15 + chunk.window - 1);
  const uint32_t counted = sight.counted_in(chunk, first / 16) >> lane / 4;
  TokenRows<D> key_rows;
  [[maybe_unused]] TokenRows<D> value_rows;
  const int keys = shift == 0 ? places.keys : places.before;
  key_rows.load(shared.k + keys, warp, lane);
  if constexpr (has_dk) value_rows.load(shared.v + keys, warp, lane);
#pragma unroll 1
  for (int square = max(first, 0) / 16; square * 16 <= last; ++square) {
    const int rows = places.queries + square * 16 * kStride;
    const uint32_t kept = draws.in.drops ? draws.of_keys(first, square * 16, lane) : 0;
    ResultFragment x[2] = {}, dx[2] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments queries = load_right_transposed(shared.q + rows + i * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(key_rows.parts[i], queries.halves[half], x[half]);
      }
      if constexpr (has_dk) {
        const RightFragments outputs =
            load_right_transposed(shared.df + rows + i * 16, kStride, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply(value_rows.parts[i], outputs.halves[half], dx[half]);
        }
      }
    }
    if (has_dk && draws.in.drops) WindowDraws::drop(kept, draws.dropout.keep, dx);
    through_softmax<D>(
        shared, counted, draws.in.scale,
        [&](int i, int& t, int& key, int& bit) {
          t = square * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
          bit = i % 4 / 2 * 8;
          key = first + lane / 4 + bit;
        },
        x, dx);
    if (has_dv && draws.in.drops) WindowDraws::drop(kept, 1.0f, x);
    [[maybe_unused]] const LeftFragment weights = as_left(x[0], x[1]);
    [[maybe_unused]] const LeftFragment gradients = as_left(dx[0], dx[1]);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      if constexpr (has_dv) {
        const RightFragments outputs = load_right(shared.df + rows + j * 16, kStride, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply(weights, outputs.halves[half], dv[2 * j + half]);
        }
      }
      if constexpr (has_dk) {
        const RightFragments queries = load_right(shared.q + rows + j * 16, kStride, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply(gradients, queries.halves[half], dk[2 * j + half]);
        }
      }
    }
  }
}

// dK or dV of a warp's keys to device memory, by way of its own `out`.
template <int D>
__device__ __forceinline__ void store_keys(const ResultFragment (&gradients)[D / 8],
                                           kernel_bf16* out, int lane, TilePlace<kernel_bf16> to) {
  constexpr int kColumns = Layout<D>::kOutColumns;
#pragma unroll
  for (int column = 0; column < D; column += kColumns) {
    ResultFragment part[kColumns / 8];
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) part[j] = gradients[column / 8 + j];
    to.column = column;
    store_rows<kColumns>(part, out, Layout<D>::kOutStride, lane, to);
  }
}

// The bias's gradients by distance: sums of the warps' squares.
__device__ __forceinline__ void store_bias(const float* squares, int window, float* to) {
  const int column = static_cast<int>(threadIdx.x), distances = square_distances(window);
  if (column >= 2 * window - 1) return;  // which are fewer than threads
  float sum = 0;
  for (int warp = 0; warp < 4; ++warp) {
    for (int apart = 0; apart < distances; ++apart) {
      const int offset = window - 1 - column - 16 * apart;  // of the query from the key
      for (int row = max(offset, 0); row < min(offset, 0) + 16; ++row) {
        const int at = row - offset;  // the key
        sum += squares[((warp * distances + apart) * 8 + at / 8 * 4 + row / 8 * 2 + at % 2) * 32 +
                       row % 8 * 4 + at % 8 / 2];
      }
    }
  }
  to[column] = sum;
}

}  // namespace linnet::cuda::lavo_pass_fast
