// The triangles of a chunk of 32 tokens, which the scans on tensor cores multiply by. Internal to
// this folder.
#pragma once

#include "attention/primitives/delta_attention/cuda/fast_gates.h"

namespace linnet::cuda::delta_attention_fast {

inline constexpr int kTokens = 32;                        // of a chunk
inline constexpr int kStride = kTile + kPadding;          // of rows of tiles
inline constexpr int kSquareStride = kTokens + kPadding;  // of rows of triangles
inline constexpr int kWorkStride = 20;                    // of rows of a square in f32

// 32 x 32 in bf16, squares above the diagonal undefined.
struct Triangles {
  kernel_bf16* keys;     // forward -P beta, backward -beta P; on the diagonal inverses of 1 + that
  kernel_bf16* queries;  // forward W beta, backward W
  float* work;           // two squares

  __host__ __device__ explicit Triangles(SharedArena& arena)
      : keys(arena.take<kernel_bf16>(size_t{2} * kTokens * kSquareStride)),
        queries(arena.take<kernel_bf16>(size_t{2} * kTokens * kSquareStride)),
        work(arena.take<float>(size_t{2} * 16 * kWorkStride)) {}
  // Of every other chunk.
  __device__ __forceinline__ Triangles(const Triangles& all, int stage)
      : keys(all.keys + stage * kTokens * kSquareStride),
        queries(all.queries + stage * kTokens * kSquareStride),
        work(all.work) {}

  // Where the square of these rows and columns, counted in squares, begins.
  __device__ __forceinline__ static int place(int row, int column) {
    return row * 16 * kSquareStride + column * 16;
  }
};

// Four neighbouring values.
struct alignas(16) Four {
  float values[4];
};

// to = (1 - L)^-1 - 1 of a strictly lower L [16,16] in `square`, by one warp: substitution in f32,
// a column for each of 16 lanes.
__device__ __forceinline__ void invert_diagonal(const ResultFragment (&square)[2], float* work,
                                                kernel_bf16* to, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    work[row * kWorkStride + column] = square[i / 4].values[i % 4];
  }
  __syncwarp();
  const int own = lane % 16;
  float solved[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = 0;
#pragma unroll
    for (int first = 0; first < i; first += 4) {
      const Four weights = *reinterpret_cast<const Four*>(work + i * kWorkStride + first);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (first + j < i) sum += weights.values[j] * solved[first + j];
      }
    }
    if (lane < 16) store(to + i * kSquareStride + own, sum);
    solved[i] = i == own ? 1.0f : sum;
  }
}

// The triangles of rows q and k [32, kStride], by four warps: of three squares of keys and three of
// queries, those on the keys' diagonal are also inverted.
template <bool backward>
__device__ __forceinline__ void make_triangles(const kernel_bf16* q, const kernel_bf16* k,
                                               const Gates<kTokens>& gates, bool decays,
                                               float query_scale, int warp, int lane,
                                               const Triangles& to) {
  const int first = warp < 2 ? warp : 2 * warp - 2;
#pragma unroll 1
  for (int job = first; job <= (warp < 2 ? first : first + 1); ++job) {
    const bool queries = job >= 3;
    const int row = job % 3 == 0 ? 0 : 1, column = job == 1 || job == 5 ? 1 : 0;
    ResultFragment square[2];
    multiply_rows((queries ? q : k) + row * 16 * kStride, k + column * 16 * kStride, kStride, lane,
                  square);
    float columns[4] = {1, 1, 1, 1};
    float rows[2] = {-1, -1};
    if (queries) rows[0] = rows[1] = query_scale;
    if constexpr (backward) {
      for (int half = 0; !queries && half < 2; ++half) {
        rows[half] = -gates.beta[row * 16 + lane / 4 + half * 8];
      }
    } else {
      gates.load_columns(column * 16, lane, columns);
    }
    gates.scale_square(row * 16, column * 16, decays, !queries, rows, columns, lane, square);
    const int place = Triangles::place(row, column);
    if (job < 2) {
      invert_diagonal(square, to.work + job * 16 * kWorkStride, to.keys + place, lane);
    } else {
      store_square(square, (queries ? to.queries : to.keys) + place, kSquareStride, lane);
    }
  }
}

}  // namespace linnet::cuda::delta_attention_fast
