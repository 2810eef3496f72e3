// Tiles in the tensor-core kernels of the orthogonal memory: the basis in shared memory,
// projections on it, the softmax of reads, and products of weights with it. Internal to this folder
// and that of lavo.
//
// A block has four warps and one head of a row (backward of wide heads: eight). Warp w answers for
// tokens 16 w to 16 w + 15 of a chunk. D is the width of tiles, at least that of heads and the
// rank; columns beyond are zero.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/chunk.h"
#include "attention/tensor_core/fast_math.h"

namespace linnet::cuda::orthogonal_memory_fast {

// Two neighbouring elements of a row of f32.
struct alignas(8) Pair {
  float values[2];
};
// Those of a warp's results: columns 8 j + lane % 4 * 2 and the one after, of row lane / 4 + 8
// half.
template <int D>
__device__ __forceinline__ Pair* results_at(float* rows, int warp, int lane, int half, int j) {
  return reinterpret_cast<Pair*>(rows + (warp * 16 + half * 8 + lane / 4) * (D + kPadding) + 8 * j +
                                 lane % 4 * 2);
}

// The same two elements of a warp's rows in a tile of bf16.
template <int D>
__device__ __forceinline__ uint32_t packed_at(const kernel_bf16* rows, int lane, int half, int j) {
  return *word_at(rows, D + kPadding, lane, half, j);
}

// The basis of a head, [D][D + padding]; nothing waits for it.
template <int D, int threads = kTileThreads>
__device__ __forceinline__ void load_basis(const Inputs& in, int head, kernel_bf16* to) {
  const int width = static_cast<int>(in.q.K);
  const float* from = in.basis + static_cast<int64_t>(head) * in.rank * width;
  for (int i = static_cast<int>(threadIdx.x); i < D * D / 2; i += threads) {
    const int row = i / (D / 2), column = i % (D / 2) * 2;
    const bool inside = row < in.rank && column < width;  // widths are even
    const float* elements = from + row * width + column;
    *reinterpret_cast<uint32_t*>(to + row * (D + kPadding) + column) =
        inside ? pack(elements[0], elements[1]) : 0;
  }
}

// Projected codes of a warp's tokens, columns 16 j to 16 j + 15, to `rows`.
template <int D>
__device__ __forceinline__ void store_codes(const ResultFragment (&codes)[2], float* rows, int warp,
                                            int lane, int j) {
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const float* pair = codes[part / 2].values + part % 2 * 2;
    *results_at<D>(rows, warp, lane, part % 2, 2 * j + part / 2) = {{pair[0], pair[1]}};
  }
}

template <int D>
struct TokenRows {
  LeftFragment parts[D / 16];

  __device__ __forceinline__ void load(const kernel_bf16* tile, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      parts[i] = load_left(tile + warp * 16 * (D + kPadding) + i * 16, D + kPadding, lane);
    }
  }
};

// Calls products(i, right, half) for rows 16 j + 8 half to 16 j + 8 half + 7 of the basis and its
// columns 16 i to 16 i + 15.
template <int D, typename Products>
__device__ __forceinline__ void visit_basis(const kernel_bf16* basis, int lane, int j,
                                            const Products& products) {
  constexpr int kStride = D + kPadding;
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const RightFragments right =
        load_right_transposed(basis + j * 16 * kStride + i * 16, kStride, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) products(i, right.halves[half], half);
  }
}

// Projections F B^T of a warp's tokens to `sums`, by themselves: fewer registers.
template <int D>
__device__ __forceinline__ void project_codes(const TokenRows<D>& rows, const kernel_bf16* basis,
                                              float* sums, int warp, int lane) {
#pragma unroll 1
  for (int j = 0; j < D / 16; ++j) {
    ResultFragment codes[2] = {};
    visit_basis<D>(basis, lane, j, [&](int i, const RightFragment& right, int half) {
      multiply(rows.parts[i], right, codes[half]);
    });
    store_codes<D>(codes, sums, warp, lane, j);
  }
}
// Those of all tokens of a chunk, for the columns of `sums` that are a warp's own in scans
// (scan.h): codes are a tile [64][D + padding].
template <int D, int warps>
__device__ __forceinline__ void project_columns(const kernel_bf16* codes, const kernel_bf16* basis,
                                                float* sums, int lane) {
  constexpr int kStride = D + kPadding, kColumns = D / warps;
  const int warp = static_cast<int>(threadIdx.x) / 32, column = warp * kColumns;
  ResultFragment projected[kChunk / 16][kColumns / 8] = {};
#pragma unroll 1  // registers
  for (int i = 0; i < D / 16; ++i) {
    const RightFragments right =
        load_right_transposed(basis + column / 16 * 16 * kStride + i * 16, kStride, lane);
    RightFragment own;  // of 8 columns
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      own.words[word] = warp % 2 == 0 ? right.halves[0].words[word] : right.halves[1].words[word];
    }
#pragma unroll
    for (int tokens = 0; tokens < kChunk / 16; ++tokens) {
      const LeftFragment rows = load_left(codes + tokens * 16 * kStride + i * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < kColumns / 8; ++half) {
        multiply(rows, kColumns == 8 ? own : right.halves[half], projected[tokens][half]);
      }
    }
  }
#pragma unroll
  for (int tokens = 0; tokens < kChunk / 16; ++tokens) {
#pragma unroll
    for (int part = 0; part < 2 * (kColumns / 8); ++part) {
      const float* pair = projected[tokens][part / 2].values + part % 2 * 2;
      *results_at<D>(sums + column, tokens, lane, part % 2, part / 2) = {{pair[0], pair[1]}};
    }
  }
}
// Those of queries, Q B^T, in registers.
template <int D>
__device__ __forceinline__ void project_queries(const TokenRows<D>& rows, const kernel_bf16* basis,
                                                int lane, ResultFragment (&queries)[D / 8]) {
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    visit_basis<D>(basis, lane, j, [&](int i, const RightFragment& right, int half) {
      multiply(rows.parts[i], right, queries[2 * j + half]);
    });
  }
}
// Queries and codes in one reading of the basis.
template <int D>
__device__ __forceinline__ void project(const TokenRows<D>& query_rows,
                                        const TokenRows<D>& code_rows, const kernel_bf16* basis,
                                        float* sums, int warp, int lane,
                                        ResultFragment (&queries)[D / 8]) {
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    ResultFragment codes[2] = {};
    visit_basis<D>(basis, lane, j, [&](int i, const RightFragment& right, int half) {
      multiply(query_rows.parts[i], right, queries[2 * j + half]);
      multiply(code_rows.parts[i], right, codes[half]);
    });
    store_codes<D>(codes, sums, warp, lane, j);
  }
}

// Those of a tile [64][D + padding], parts of rows loaded as they are needed: fewer registers.
template <int D>
__device__ __forceinline__ void project_tile(const kernel_bf16* tile, const kernel_bf16* basis,
                                             int warp, int lane,
                                             ResultFragment (&projected)[D / 8]) {
  constexpr int kStride = D + kPadding;
#pragma unroll 1
  for (int i = 0; i < D / 16; ++i) {
    const LeftFragment rows = load_left(tile + warp * 16 * kStride + i * 16, kStride, lane);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      const RightFragments right =
          load_right_transposed(basis + j * 16 * kStride + i * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        multiply(rows, right.halves[half], projected[2 * j + half]);
    }
  }
}

// Sum, and largest, of the four lanes that have a row's results.
__device__ __forceinline__ float sum_of_row(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}
__device__ __forceinline__ float largest_of_row(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

// The softmax over the rank of a row's logits factor * sum * projection, before it is normalised.
template <int D>
struct Softmax {
  float weights[D / 4];  // of number 8 j + lane % 4 * 2 + odd: 2 j + odd; logits (base 2) first
  float shift = -std::numeric_limits<float>::infinity();

  // projection(j, odd) is that of number 8 j + lane % 4 * 2 + odd.
  template <typename Projection>
  __device__ __forceinline__ Softmax(float* sums, int warp, int lane, int half, int rank,
                                     float factor, const Projection& projection) {
    factor *= 1.4426950408889634f;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const Pair sum = *results_at<D>(sums, warp, lane, half, j);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const bool inside = 8 * j + lane % 4 * 2 + odd < rank;
        float& logit = weights[2 * j + odd];
        logit = inside ? factor * sum.values[odd] * projection(j, odd)
                       : -std::numeric_limits<float>::infinity();
        shift = fmaxf(shift, logit);
      }
    }
    shift = largest_of_row(shift);
  }
  __device__ __forceinline__ float make_weight(int j, int odd) {
    float& weight = weights[2 * j + odd];
    weight = fast_exp2(weight - shift);
    return weight;
  }
};

// Projected queries become the weights with which rows of the basis are added, of row lane / 4 + 8
// half; factor is 1 over the number of tokens that were summed.
template <int D>
__device__ __forceinline__ void weigh(float* sums, int warp, int lane, int half, int rank,
                                      float factor, float scale, ResultFragment (&queries)[D / 8]) {
  Softmax<D> softmax(sums, warp, lane, half, rank, scale * factor,
                     [&](int j, int odd) { return queries[j].values[2 * half + odd]; });
  float total = 0;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const Pair sum = *results_at<D>(sums, warp, lane, half, j);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float weight = softmax.make_weight(j, odd);
      total += weight;
      queries[j].values[2 * half + odd] = weight * sum.values[odd];
    }
  }
  const float norm = factor * reciprocal(sum_of_row(total));
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) queries[j].values[2 * half + odd] *= norm;
  }
}

// out += weights B.
template <int D>
__device__ __forceinline__ void expand(const ResultFragment (&weights)[D / 8],
                                       const kernel_bf16* basis, int lane,
                                       ResultFragment (&out)[D / 8]) {
  constexpr int kStride = D + kPadding;
  LeftFragment lefts[D / 16];
#pragma unroll
  for (int i = 0; i < D / 16; ++i) lefts[i] = as_left(weights[2 * i], weights[2 * i + 1]);
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments right = load_right(basis + i * 16 * kStride + j * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(lefts[i], right.halves[half], out[2 * j + half]);
      }
    }
  }
}

// Calls run with the width, as a constant, of the narrowest tiles for heads of this width.
template <int widest, typename Run>
auto with_tile(int64_t width, const Run& run) {
  if (width <= 32) return run(std::integral_constant<int, 32>{});
  if (width <= 64) return run(std::integral_constant<int, 64>{});
  return run(std::integral_constant<int, widest>{});
}

}  // namespace linnet::cuda::orthogonal_memory_fast
