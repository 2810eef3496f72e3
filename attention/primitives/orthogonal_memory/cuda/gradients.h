// Parts of the backward pass of the orthogonal memory (fast_backward.cu): gradients of reads, of
// sums along a chunk, and dQ and dF. Internal to this folder.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/dropout.h"
#include "attention/primitives/orthogonal_memory/cuda/scan.h"

namespace linnet::cuda::orthogonal_memory_fast {

template <int D>
inline constexpr bool kTwoTeams = D > 64;  // of four warps: reads, codes
template <int D>
using Warps = Team<kTwoTeams<D> ? 8 : 4, kChunk>;

template <int D, int stages>
struct Layout {
  static constexpr int kStride = D + kPadding;
  static constexpr size_t kTile = size_t{kChunk} * kStride;
  // Whether dC has a tile of its own: not where fewer blocks would fit a multiprocessor, or none.
  static constexpr bool kSeparatesCodes = D >= 64 && stages > 1;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : basis(arena.take<kernel_bf16>(size_t{D} * kStride)),
        weights(arena.take<kernel_bf16>(kTile)),
        dcodes(kSeparatesCodes ? arena.take<kernel_bf16>(kTile) : weights),
        gradients(arena.take<kernel_bf16>(kTile)),
        // Without the last row's padding: with it, 64 columns would need more than 99 KiB.
        sums(arena.take<float>(kTile - kPadding)),
        flags(arena.take<uint32_t>(2 * kFlagWords)),
        q(arena.take<kernel_bf16>(stages * kTile)),
        f(arena.take<kernel_bf16>(stages * kTile)),
        dy(arena.take<kernel_bf16>(stages * kTile)) {}
  kernel_bf16* basis;
  kernel_bf16* weights;     // p * m
  kernel_bf16* dcodes;      // dC
  kernel_bf16* gradients;   // dP
  float* sums;              // codes, the tokens' reads, dm
  uint32_t* flags;          // of two chunks, alternating
  kernel_bf16 *q, *f, *dy;  // double-buffered; q and dy then have dQ and dF on their way out
};

// Projections P and U of queries and outputs, of a warp's rows lane / 4 and 8 after. Where dB
// leaves too few registers for both, each team keeps one of the two rows, and of that row U lies as
// f32 in the words of `weights` (even columns) and `gradients` (odd ones) that then receive what is
// made of it.
template <int D>
struct Projections {
  static constexpr int kRows = kTwoTeams<D> ? 1 : 2;
  Pair queries[kRows][D / 8], outputs[kTwoTeams<D> ? 1 : kRows][kTwoTeams<D> ? 1 : D / 8];
  kernel_bf16 *weights, *gradients;  // this lane's words of its first row
  int team;

  __device__ __forceinline__ static int place(int half, int j) {
    return half * 8 * (D + kPadding) + 8 * j;
  }
  // Which of the two rows is row i of those that are kept.
  __device__ __forceinline__ int half_of(int i) const { return kTwoTeams<D> ? team : i; }

  __device__ __forceinline__ void load(const kernel_bf16* q, const kernel_bf16* dy,
                                       const kernel_bf16* basis, int warp, int lane) {
    if constexpr (kTwoTeams<D>) {
      ResultFragment projected[D / 8] = {};
      project_tile<D>(dy, basis, warp, lane, projected);
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        const Pair own = row_of(projected[j]);
        keep(weights + place(team, j), own.values[0]);
        keep(gradients + place(team, j), own.values[1]);
        projected[j] = {};
      }
      project_tile<D>(q, basis, warp, lane, projected);
#pragma unroll
      for (int j = 0; j < D / 8; ++j) queries[0][j] = row_of(projected[j]);
    } else {
      ResultFragment of_queries[D / 8] = {}, of_outputs[D / 8] = {};
      TokenRows<D> query_rows, output_rows;
      query_rows.load(q, warp, lane);
      output_rows.load(dy, warp, lane);
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        visit_basis<D>(basis, lane, j, [&](int i, const RightFragment& right, int half) {
          multiply(query_rows.parts[i], right, of_queries[2 * j + half]);
          multiply(output_rows.parts[i], right, of_outputs[2 * j + half]);
        });
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
          queries[i][j] = {{of_queries[j].values[2 * i], of_queries[j].values[2 * i + 1]}};
          outputs[i][j] = {{of_outputs[j].values[2 * i], of_outputs[j].values[2 * i + 1]}};
        }
      }
    }
  }
  __device__ __forceinline__ Pair output(int i, int j) const {
    if constexpr (kTwoTeams<D>) {
      return {{kept(weights + place(team, j)), kept(gradients + place(team, j))}};
    } else {
      return outputs[i][j];
    }
  }
  // In row i of those that are kept, U becomes 0 for the weights that dropout does not keep. Which
  // these are waits in the padding of the row of `weights`: registers.
  __device__ __forceinline__ void drop_outputs(int i, const KeptWeights<D>& kept) {
    word_at(weights + place(half_of(i), D / 8)) = kept.word();
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        if (kept.stays(j, odd)) continue;
        if constexpr (kTwoTeams<D>) {
          keep((odd == 0 ? weights : gradients) + place(team, j), 0);
        } else {
          outputs[i][j].values[odd] = 0;
        }
      }
    }
  }
  // The same of p * m, which read_gradients() left.
  __device__ __forceinline__ void drop_weights(int i) const {
    KeptWeights<D> kept;
    kept.set(word_at(weights + place(half_of(i), D / 8)));
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      word_at(weights + place(half_of(i), j)) &=
          (kept.stays(j, 0) ? 0xFFFFu : 0u) | (kept.stays(j, 1) ? 0xFFFF0000u : 0u);
    }
  }

 private:
  // A value in the place of the pair that is stored there later, as a word like that one.
  static __device__ __forceinline__ void keep(kernel_bf16* at, float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof(word));
    word_at(at) = word;
  }
  static __device__ __forceinline__ uint32_t& word_at(kernel_bf16* at) {
    return *reinterpret_cast<uint32_t*>(at);
  }
  static __device__ __forceinline__ float kept(const kernel_bf16* at) {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(at);
    float x;
    memcpy(&x, &word, sizeof(x));
    return x;
  }
  __device__ __forceinline__ Pair row_of(const ResultFragment& both) const {
    return {
        {team == 0 ? both.values[0] : both.values[2], team == 0 ? both.values[1] : both.values[3]}};
  }
};

// Through the reads of a kept row's token: p * m and dP to their tiles, dm in the place of the
// sums. factor is 1 / n, 0 where the memory is empty; share, the share of the read in y.
template <int D>
__device__ __forceinline__ void read_gradients(float* sums, int warp, int lane, int row,
                                               float factor, float share, const Backward& a,
                                               const Projections<D>& projections) {
  const int half = projections.half_of(row);
  const auto query = [&](int j, int odd) { return projections.queries[row][j].values[odd]; };
  Softmax<D> softmax(sums, warp, lane, half, a.rank, a.scale * factor, query);
  float total = 0, along = 0;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const Pair sum = *results_at<D>(sums, warp, lane, half, j);
    const Pair output = projections.output(row, j);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float weight = softmax.make_weight(j, odd);
      total += weight;
      along += weight * sum.values[odd] * output.values[odd];
    }
  }
  const float norm = reciprocal(sum_of_row(total));
  along = sum_of_row(along) * factor * norm * share;
  __syncwarp();  // sums are read again, not kept: registers
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    Pair& sum = *results_at<D>(sums, warp, lane, half, j);
    const Pair output = projections.output(row, j);
    float weights[2], gradients[2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float mean = factor * sum.values[odd];
      const float u = share * output.values[odd];
      const float p = norm * softmax.weights[2 * j + odd];
      const float scaled = a.scale * (p * (mean * u - along));
      weights[odd] = share * p * mean;
      gradients[odd] = mean * scaled;
      sum.values[odd] = factor * (p * u + query(j, odd) * scaled);
    }
    const int at = Projections<D>::place(half, j);
    *reinterpret_cast<uint32_t*>(projections.weights + at) = pack(weights[0], weights[1]);
    *reinterpret_cast<uint32_t*>(projections.gradients + at) = pack(gradients[0], gradients[1]);
  }
}

// dQ and dF of a warp's tokens, by way of its rows of q and dy, which no other warp looks at any
// more. dF begins with a share of dY; `along` receives dF . f. For the row lane / 4 and the row 8
// after.
template <int D, bool has_queries, bool has_codes, int stages>
__device__ __forceinline__ void expand_gradients(const Layout<D, stages>& shared, int on,
                                                 const float (&shares)[2], int warp, int lane,
                                                 [[maybe_unused]] TilePlace<kernel_bf16> queries,
                                                 [[maybe_unused]] TilePlace<kernel_bf16> codes,
                                                 float (&along)[2]) {
  constexpr int kStride = Layout<D, stages>::kStride;
  const int first = on + warp * 16 * kStride;
  TokenRows<D> query_rows, code_rows;
  if constexpr (has_queries) query_rows.load(shared.gradients, warp, lane);
  if constexpr (has_codes) code_rows.load(shared.dcodes, warp, lane);
#pragma unroll 1  // registers
  for (int j = 0; j < D / 16; ++j) {
    ResultFragment dq[2] = {}, df[2] = {};
#pragma unroll
    for (int part = 0; part < 4 && has_codes; ++part) {
      const uint32_t pair = packed_at<D>(shared.dy + first, lane, part % 2, 2 * j + part / 2);
      df[part / 2].values[part % 2 * 2] = shares[part % 2] * low_of(pair);
      df[part / 2].values[part % 2 * 2 + 1] = shares[part % 2] * high_of(pair);
    }
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments basis =
          load_right(shared.basis + i * 16 * kStride + j * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (has_queries) multiply(query_rows.parts[i], basis.halves[half], dq[half]);
        if constexpr (has_codes) multiply(code_rows.parts[i], basis.halves[half], df[half]);
      }
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int half = part % 2, at = 2 * j + part / 2;
      if constexpr (has_queries) {
        const float* values = dq[part / 2].values + half * 2;
        *word_at(shared.q + first, kStride, lane, half, at) = pack(values[0], values[1]);
      }
      if constexpr (has_codes) {
        const float* values = df[part / 2].values + half * 2;
        const uint32_t stored = pack(values[0], values[1]);  // as others will read it
        const uint32_t pair = packed_at<D>(shared.f + first, lane, half, at);
        along[half] += low_of(stored) * low_of(pair) + high_of(stored) * high_of(pair);
        *word_at(shared.dy + first, kStride, lane, half, at) = stored;
      }
    }
  }
  __syncwarp();
  if constexpr (has_queries) write_out<D>(shared.q + first, kStride, lane, queries, 0, 16);
  if constexpr (has_codes) write_out<D>(shared.dy + first, kStride, lane, codes, 0, 16);
}

}  // namespace linnet::cuda::orthogonal_memory_fast
