// Parts of the tensor-core kernels of block and listed attention. A block has four warps and 64
// rows of its own, queries or keys, 16 per warp (forward 128 and 32 in long calls); it streams past
// them the tiles of 64 rows of the other kind that any of its rows sees, two arrays of them, copied
// while the tile before is computed. Internal to this folder and that of listed_attention.
#pragma once

#include "attention/primitives/block_attention/cuda/fast_dropout.h"
#include "attention/primitives/block_attention/cuda/fast_rows.h"
#include "attention/tensor_core/fast_math.h"
#include "attention/tensor_core/state_tile.h"

namespace linnet::cuda::block_attention_fast_detail {

using block_attention_fast::Call;
using block_attention_fast::Reads;
using block_attention_fast::Writes;

inline constexpr int kDistances = 2 * kTileRows;  // that two tiles have, and one more
inline constexpr float kLog2E = 1.4426950408889634f;

// Calls body with the width of the call's tiles, a constant; values may take several.
template <typename Body>
void with_width(const Call& call, const Body& body) {
  tensor_core::for_width(std::max(call.q.K, call.v.K), body);
}
// Where values end for kernels that loop over tiles of them; narrow tiles hold them all.
template <int D, typename Call>
__host__ __device__ __forceinline__ int values_of(const Call& call) {
  return D < 128 ? D : static_cast<int>(call.v.K);
}
template <int D, typename Call>
int value_tiles(const Call& call) {
  return (values_of<D>(call) + D - 1) / D;
}

// Registers bound how many blocks share a multiprocessor.
template <int D>
inline constexpr int kBlocks = D < 128 ? 3 : 2;
// Those whose own rows are queries, 16 a warp, need fewer.
template <int D>
inline constexpr int kQueryBlocks = D < 128 ? 4 : 2;
// Columns of a tile that backward computes at once.
template <int D>
inline constexpr int kStep = D < 64 ? 32 : 16;

// A block's shared memory: streamed tiles, and what its draws have in common.
template <int D>
struct TileStages {
  static constexpr int kStride = kRowStride<D>;

  __host__ __device__ explicit TileStages(SharedArena& arena)
      : tiles(arena.take<kernel_bf16>(size_t{4} * kTileRows * kStride)),
        draws(arena.take<BlockDraws>(1)) {}
  // Array 0 or 1 of streamed tile n, double-buffered.
  __device__ __forceinline__ kernel_bf16* tile(int n, int array) const {
    return tiles + (n % 2 * 2 + array) * kTileRows * kStride;
  }
  kernel_bf16* tiles;
  BlockDraws* draws;  // where there is dropout
};
// Whose rows a block has: of head h of row b, and of key head g, from `first` on. Read again from
// shared memory after every barrier, for want of registers.
struct alignas(16) BlockPlace {
  int b, h, g, first;
};
// The same with biases, and with the columns that the block's rows see, of which there are
// `row_tiles` times 64.
template <int D, int row_tiles = 1>
struct Stages : TileStages<D> {
  static constexpr int kRows = row_tiles * kTileRows, kBiases = row_tiles * kDistances;

  __host__ __device__ explicit Stages(SharedArena& arena)
      : TileStages<D>(arena),
        biases(arena.take<float>(size_t{2} * kBiases)),
        begins(arena.take<int>(kRows)),
        ends(arena.take<int>(kRows)),
        ranges(arena.take<Range>(Sight::kBlockRange + 1)),
        valid_columns(arena.take<uint64_t>(2)),
        place(arena.take<BlockPlace>(1)) {}

  // Of tile n, as BiasRow has them for the last 64 rows.
  __device__ __forceinline__ float* bias(int n) const { return biases + n % 2 * kBiases; }
  // Which keys of tile n count, as bits.
  __device__ __forceinline__ uint64_t* valid(int n) const { return valid_columns + n % 2; }
  __device__ __forceinline__ void set_range(const Range& range) const {
    begins[threadIdx.x] = range.begin;
    ends[threadIdx.x] = range.end;
  }
  // Of head h of row b.
  __device__ __forceinline__ void set_draws(const Problem& p, int b, int h) const {
    if (threadIdx.x == 0) *this->draws = {p.draws(b, h), p.row_time(b), key_time(p, b)};
  }

  float* biases;
  int *begins, *ends;
  Range* ranges;
  uint64_t* valid_columns;
  BlockPlace* place;
};

// A warp's 16 rows of a tile as left operands.
template <int D>
__device__ __forceinline__ void load_rows(const kernel_bf16* tile, int warp, int lane,
                                          LeftFragment (&rows)[D / 16]) {
  constexpr int kStride = TileStages<D>::kStride;
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    rows[i] = load_left(tile + warp * 16 * kStride + i * 16, kStride, lane);
  }
}

// sums += rows tile^T, of N rows of a tile; left(i) is columns 16 i and on of 16 rows.
template <int D, int N, typename Left>
__device__ __forceinline__ void multiply_transposed(const Left& left, const kernel_bf16* tile,
                                                    int lane, ResultFragment (&sums)[N / 8]) {
  constexpr int kStride = TileStages<D>::kStride;
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const LeftFragment rows = left(i);
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      const RightFragments right =
          load_right_transposed(tile + j * 16 * kStride + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) multiply(rows, right.halves[half], sums[2 * j + half]);
    }
  }
}

// sums += weights tile, of N rows of a tile.
template <int D, int N>
__device__ __forceinline__ void add_weighted(const ResultFragment (&weights)[N / 8],
                                             const kernel_bf16* tile, int lane,
                                             ResultFragment (&sums)[D / 8]) {
  constexpr int kStride = TileStages<D>::kStride;
#pragma unroll
  for (int j = 0; j < N / 16; ++j) {
    const LeftFragment left = as_left(weights[2 * j], weights[2 * j + 1]);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments right = load_right(tile + j * 16 * kStride + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) multiply(left, right.halves[half], sums[2 * i + half]);
    }
  }
}

// The row of the bias table that a head reads, times the factor of logits. Entry i of a tile is
// that of distance: first key - first query - 63 + i.
struct BiasRow {
  const Problem& p;
  const float* table;

  __device__ __forceinline__ BiasRow(const Problem& problem, int64_t h)
      : p(problem), table(p.bias + (p.bias_heads == 1 ? 0 : h) * p.bias_count) {}
  // Where entry 0 is in the table.
  __device__ __forceinline__ static int64_t place(const Problem& p, int64_t key, int64_t query) {
    return key - query + p.bias_origin - p.P - (kTileRows - 1);
  }
  // This thread's entry; no pair that is seen has a distance beyond the table.
  __device__ __forceinline__ float entry(int64_t key, int64_t query) const {
    const int64_t i = place(p, key, query) + threadIdx.x;
    return i >= 0 && i < p.bias_count ? table[i] * p.logit_unit : 0.0f;
  }
};

// A log-sum-exp in units of log 2, such that all weights of a query that sees nothing are 0.
__device__ __forceinline__ float log2_of(float log_sum_exp) {
  return log_sum_exp == -kInfinity ? kInfinity : log_sum_exp * kLog2E;
}

// Calls body(value, i) for the values of results side by side, values[i % 4] of result i / 4.
template <int count, typename Body>
__device__ __forceinline__ void for_values(ResultFragment (&x)[count], const Body& body) {
#pragma unroll
  for (int i = 0; i < 4 * count; ++i) body(x[i / 4].values[i % 4], i);
}

// What a weight and the gradient of its logit are made of: `roots` replaces logits less their
// query's log-sum-exp (in units of log 2), `weights` roots; `gradients` replaces dy . v, `shift`(i)
// being what the query of value i adds to the gradients of all weights.
struct SoftmaxTerms {
  template <int count>
  __device__ __forceinline__ void roots(ResultFragment (&x)[count]) const {
    for_values(x, [](float& value, int) { value = tensor_core::fast_exp2(value); });
  }
  template <int count>
  __device__ __forceinline__ void weights(ResultFragment (&)[count]) const {}
  template <int count, typename Shift>
  __device__ __forceinline__ void gradients(const ResultFragment (&roots)[count],
                                            ResultFragment (&products)[count],
                                            const Shift& shift) const {
    for_values(products, [&](float& value, int i) {
      value = roots[i / 4].values[i % 4] * (value + shift(i));
    });
  }
};

// Logits from products q . k: those of softmax are in units of log 2, for exp2.
struct Logits {
  const Problem& p;

  // Logits of the columns column to column + N of a tile that begins at `first`, less offset(i) of
  // value i; -infinity where a pair is not seen. Bits of `valid` say which columns count; null:
  // all.
  template <bool rows_are_keys, int N, typename Offset>
  __device__ __forceinline__ void make(ResultFragment (&x)[N / 8], const Offset& offset,
                                       const float* bias, const Sight& sight, const TileSight& seen,
                                       int first, int column, const uint64_t* valid, int warp,
                                       int lane) const {
    for_values(x, [&](float& value, int i) { value = value * p.logit_scale - offset(i); });
    if (p.bias != nullptr) {
      const int distance = (column + lane % 4 * 2) - (warp * 16 + lane / 4);
      const float* mine = bias + (rows_are_keys ? -distance : distance) + kTileRows - 1;
      for_values(x, [&](float& value, int i) {
        const int on = i / 4 * 8 + i % 2 - i % 4 / 2 * 8;
        value += mine[rows_are_keys ? -on : on];
      });
    }
    const bool edge = !seen.covers(column, N);
    if (edge) hide<N>(x, sight, first, column, valid, warp, lane);
  }

  // -infinity where a pair is not seen.
  template <int N>
  __device__ __forceinline__ void hide(ResultFragment (&x)[N / 8], const Sight& sight, int first,
                                       int column, const uint64_t* valid, int warp,
                                       int lane) const {
    const int from = column + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + lane / 4 + half * 8, begin = sight.begins[row];
      const auto length = static_cast<unsigned>(max(sight.ends[row] - begin, 0));
      // Columns before the range are at distances that are huge without a sign.
      const int distance = first + from - begin;
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        if (static_cast<unsigned>(distance + i / 2 * 8 + i % 2) < length) continue;
        x[i / 2].values[2 * half + i % 2] = -kInfinity;
      }
    }
    if (valid == nullptr || *valid == ~uint64_t{0}) return;
    const uint64_t own_columns = *valid >> from;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      if ((own_columns >> (i / 2 * 8 + i % 2) & 1) != 0) continue;
      x[i / 2].values[i % 2] = x[i / 2].values[2 + i % 2] = -kInfinity;
    }
  }

  // As SoftmaxTerms; of relu squared the root is max(x, 0). Asked once for all values.
  template <int count>
  __device__ __forceinline__ void roots(ResultFragment (&x)[count]) const {
    if (p.normalised()) return SoftmaxTerms{}.roots(x);
    for_values(x, [](float& value, int) { value = value < 0 ? 0.0f : value; });
  }
  template <int count>
  __device__ __forceinline__ void weights(ResultFragment (&x)[count]) const {
    if (p.normalised()) return;
    for_values(x, [](float& value, int) { value *= value; });
  }
  template <int count, typename Shift>
  __device__ __forceinline__ void gradients(const ResultFragment (&roots)[count],
                                            ResultFragment (&products)[count],
                                            const Shift& shift) const {
    if (p.normalised()) return SoftmaxTerms{}.gradients(roots, products, shift);
    for_values(products, [&](float& value, int i) { value *= 2 * roots[i / 4].values[i % 4]; });
  }
};

// The tiles of keys and values that a block's queries see, one after another; of values the columns
// from `value` on.
template <int D, int row_tiles = 1>
struct KeyStream {
  const Call& call;
  const Stages<D, row_tiles>& shared;
  AsyncCopies& copies;
  int value;
  float entries[row_tiles] = {};  // of biases, for the tile that was begun last

  __device__ __forceinline__ int count() const {
    return tiles_between(shared.ranges[Sight::kBlockRange]);
  }
  __device__ __forceinline__ int key(int n) const {
    return shared.ranges[Sight::kBlockRange].begin + n * kTileRows;
  }
  // Begins to copy tile n; an empty group of copies where there is none.
  __device__ __forceinline__ void begin(int n) {
    if (n < count()) {
      const Problem& p = call.problem;
      using Rows = KeyRows<const kernel_bf16>;
      const BlockPlace at = *shared.place;
      const int from = key(n), past = static_cast<int>(p.P);
      const uint64_t valid =
          valid_keys(p, at.b, from, recomputed(static_cast<int>(threadIdx.x)) % 32);
      if (threadIdx.x == 0) *shared.valid(n) = valid;
      const Rows keys{call.k, call.past_k, p.key_mask, p.past_mask, past, at.b, at.g};
      const Rows values{call.v, call.past_v, p.key_mask, p.past_mask, past, at.b, at.g, value};
      const bool whole = valid == ~uint64_t{0} && are_even(keys, from, kTileRows);
      begin_copy<D>(copies, shared.tile(n, 0), keys, from, whole);
      begin_copy<D>(copies, shared.tile(n, 1), values, from, whole);
      if (p.bias != nullptr) find_bias(BiasRow(p, at.h), at.first, from);
    }
    copies.commit();
  }
  __device__ __forceinline__ void find_bias(const BiasRow& bias, int first, int from) {
#pragma unroll
    for (int i = 0; i < row_tiles; ++i) {
      entries[i] = bias.entry(from, first + (row_tiles - 1) * kTileRows - i * kDistances);
    }
  }
  // Stores the biases of tile n, which was begun last: only now are they waited for.
  __device__ __forceinline__ void store_bias(int n) const {
    if (call.problem.bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < row_tiles; ++i) {
      shared.bias(n)[threadIdx.x + i * kDistances] = entries[i];
    }
  }
};

// Sum over the four lanes that share rows.
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace linnet::cuda::block_attention_fast_detail
