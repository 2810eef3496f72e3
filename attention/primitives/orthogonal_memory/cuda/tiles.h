// Parts of the tensor-core kernels of the orthogonal memory: which tokens of a chunk are in whose
// memory, the scans of sums along a chunk, and the basis in shared memory. Internal to this folder
// and that of lavo.
//
// A block has four warps and one head of a row (backward of wide heads: eight). A chunk has 64
// tokens; warp w answers for its tokens 16 w to 16 w + 15, thread l for number l of every sum. D is
// the width of tiles, at least that of heads and the rank; columns beyond are zero.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/fast.h"
#include "attention/tensor_core/state_tile.h"

namespace linnet::cuda::orthogonal_memory_fast {

using namespace tensor_core;
static_assert(kChunkTokens == kChunk);

// One token's bits: it begins a segment inside the row; its code counts.
struct TokenFlags {
  bool first = false, counted = false;

  __device__ __forceinline__ void load(const Inputs& in, int64_t row, int64_t token) {
    first = counted = false;
    if (token >= in.f.T) return;
    const int64_t at = row * in.f.T + token;
    first = token > 0 && in.segments != nullptr && in.segments[at] != in.segments[at - 1];
    counted = is_set(in.code_mask, at);
  }
  // By all lanes of warps 0 and 1: words 2 warp and 2 warp + 1 of `to`.
  __device__ __forceinline__ void publish(uint32_t* to, int warp, int lane) const {
    const uint32_t begins = __ballot_sync(~0u, first ? 1 : 0);
    const uint32_t counts = __ballot_sync(~0u, counted ? 1 : 0);
    if (lane == 0) {
      to[2 * warp] = begins;
      to[2 * warp + 1] = counts;
    }
  }
};
inline constexpr int kFlagWords = 4;  // of a chunk

// Which codes of a chunk its tokens read; the same in all threads.
struct Chunk {
  uint64_t firsts, counted;  // bit t: of token t
  int length;                // tokens
  int phase;                 // position of token 0 in its window, if it does not begin a segment
  int window;
  bool inclusive;

  __device__ __forceinline__ void read(const uint32_t* words) {
    firsts = words[0] | static_cast<uint64_t>(words[2]) << 32;
    counted = words[1] | static_cast<uint64_t>(words[3]) << 32;
  }
  __device__ __forceinline__ bool begins_segment(int t) const { return (firsts >> t & 1) != 0; }
  // Where the segment of token t begins; -1: before the chunk.
  __device__ __forceinline__ int segment_begin(int t) const {
    return highest_bit(firsts & bits_below(t + 1));
  }
  // The token of the chunk after the segment of token t.
  __device__ __forceinline__ int segment_end(int t) const {
    return min(length, lowest_bit(firsts & ~bits_below(t + 1)));
  }
  // Where its window begins; below 0: before the chunk. t = length: of the token after the chunk,
  // if it does not begin a segment.
  __device__ __forceinline__ int window_begin(int t) const {
    const int segment = segment_begin(t);
    return t - (segment >= 0 ? t - segment : phase + t) % window;
  }
  __device__ __forceinline__ int counted_between(int begin, int end) const {
    return count_bits(counted & bits_below(end) & ~bits_below(begin));
  }
};

// Tokens that count before a chunk, in completed windows and in the open one. Whole: in the segment
// that reaches into the chunk and in the one that reaches out of it.
struct TokenCounts {
  int64_t completed, partial;

  // In all of the segment of token t.
  __device__ __forceinline__ int64_t seen_by_segment(const Chunk& chunk, int t) const {
    const int begin = chunk.segment_begin(t), end = chunk.segment_end(t);
    if (begin < 0) return completed;
    return end == chunk.length ? partial : chunk.counted_between(begin, end);
  }

  // In the memory that token t reads.
  __device__ __forceinline__ int64_t seen_by(const Chunk& chunk, int t) const {
    return before(chunk, t, chunk.window_begin(t) + (chunk.inclusive ? 1 : 0));
  }
  // From before a chunk to after it.
  __device__ __forceinline__ void advance(const Chunk& chunk) {
    const int end = chunk.length, window = chunk.window_begin(end);
    const bool continues = chunk.segment_begin(end) < 0 && window <= 0;
    const int64_t open = (continues ? partial : 0) + chunk.counted_between(window, end);
    completed = before(chunk, end, window);
    partial = open;
  }

 private:
  // In the segment of t, up to token `end`.
  __device__ __forceinline__ int64_t before(const Chunk& chunk, int t, int end) const {
    const int segment = chunk.segment_begin(t);
    const int64_t own = chunk.counted_between(segment, end);
    return segment >= 0 ? own : own + completed + (end > 0 ? partial : 0);
  }
};

// One number of the sums of codes over completed windows and over the open one. Whole: over the
// segment that reaches into the chunk and the one that reaches out of it.
struct RunningSums {
  float completed, partial;

  // A column of codes becomes the sums of their segments.
  __device__ __forceinline__ void sum_segments(const Chunk& chunk, float* column,
                                               int stride) const {
    for (int begin = 0, end; begin < chunk.length; begin = end) {
      end = chunk.segment_end(begin);
      float sum = 0;
      if (!chunk.begins_segment(begin)) {
        sum = completed;
      } else if (end == chunk.length) {
        sum = partial;
      } else {
#pragma unroll 8
        for (int t = begin; t < end; ++t) sum += column[t * stride];
      }
#pragma unroll 8
      for (int t = begin; t < end; ++t) column[t * stride] = sum;
    }
  }
  // All of a column, where rows have no segments.
  __device__ __forceinline__ void fill(float* column, int stride) const {
#pragma unroll 8
    for (int t = 0; t < kChunk; ++t) column[t * stride] = completed;
  }

  // Along a column [64] of codes, `stride` apart, which become the tokens' reads.
  __device__ __forceinline__ void scan(const Chunk& chunk, float* column, int stride) {
    int position = chunk.phase;
    for (int begin = 0; begin < chunk.length; begin += 8) {
      float codes[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) codes[i] = column[(begin + i) * stride];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (begin + i >= chunk.length) break;
        if (chunk.begins_segment(begin + i)) {
          completed = partial = 0;
          position = 0;
        }
        const float before = completed;
        partial += codes[i];
        if (++position == chunk.window) {
          completed += partial;
          partial = 0;
          position = 0;
        }
        column[(begin + i) * stride] = chunk.inclusive ? completed : before;
      }
    }
  }
};

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

// begin_copy(), which goes through its parts in a loop: unrolled, their addresses would take
// registers from chunk to chunk.
template <int D, typename Team = FourWarps>
__device__ __forceinline__ void begin_rows(AsyncCopies& copies, kernel_bf16* tile,
                                           const TilePlace<const kernel_bf16>& from) {
  using Part = TilePart<D, Team>;
#pragma unroll 1
  for (int i = 0; i < Part::kCount; ++i) {
    const int row = Part::row(i), column = Part::column(i);
    const bool inside = from.inside(from.begin + row, column);
    copies.copy(tile + row * Part::kStride + column,
                inside ? from.at(from.begin + row, column) : from.view.data, inside);
  }
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
  float factor, shift = -std::numeric_limits<float>::infinity();
  int lane, rank;

  // projection(j, odd) is that of number 8 j + lane % 4 * 2 + odd.
  template <typename Projection>
  __device__ __forceinline__ Softmax(float* sums, int warp, int lane, int half, int rank,
                                     float factor, const Projection& projection)
      : factor(factor), lane(lane), rank(rank) {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const Pair sum = *results_at<D>(sums, warp, lane, half, j);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        shift = fmaxf(shift, logit(sum.values[odd], projection(j, odd), j, odd));
      }
    }
    shift = largest_of_row(shift);
  }
  __device__ __forceinline__ float weight(float sum, float projection, int j, int odd) const {
    return __expf(logit(sum, projection, j, odd) - shift);
  }

 private:
  __device__ __forceinline__ float logit(float sum, float projection, int j, int odd) const {
    const bool inside = 8 * j + lane % 4 * 2 + odd < rank;
    return inside ? factor * sum * projection : -std::numeric_limits<float>::infinity();
  }
};

// Projected queries become the weights with which rows of the basis are added, of row lane / 4 + 8
// half; factor is 1 over the number of tokens that were summed.
template <int D>
__device__ __forceinline__ void weigh(float* sums, int warp, int lane, int half, int rank,
                                      float factor, float scale, ResultFragment (&queries)[D / 8]) {
  const Softmax<D> softmax(sums, warp, lane, half, rank, scale * factor,
                           [&](int j, int odd) { return queries[j].values[2 * half + odd]; });
  float total = 0;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const Pair sum = *results_at<D>(sums, warp, lane, half, j);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float& weight = queries[j].values[2 * half + odd];
      weight = softmax.weight(sum.values[odd], weight, j, odd);
      total += weight;
      weight *= factor * sum.values[odd];
    }
  }
  const float norm = 1 / sum_of_row(total);
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
