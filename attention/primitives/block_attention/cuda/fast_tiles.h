// Parts of the tensor-core kernels of block and listed attention. A block has four warps and 64
// rows of its own, queries or keys, 16 per warp (forward 128 and 32 in long calls); it streams past
// them the tiles of 64 rows of the other kind that any of its rows sees, two arrays of them, copied
// while the tile before is computed. Internal to this folder and that of listed_attention.
#pragma once

#include "attention/primitives/block_attention/cuda/fast.h"
#include "attention/primitives/block_attention/cuda/fast_dropout.h"
#include "attention/primitives/block_attention/cuda/fast_ranges.h"
#include "attention/tensor_core/fast_math.h"
#include "attention/tensor_core/state_tile.h"

namespace linnet::cuda::block_attention_fast_detail {

using block_attention_fast::Call;
using block_attention_fast::Reads;
using block_attention_fast::Writes;
using tensor_core::Eight;
using tensor_core::kPadding;
using tensor_core::kTileThreads;
static_assert(kTileRows == tensor_core::kChunk);

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
// Columns of a tile that backward computes at once.
template <int D>
inline constexpr int kStep = D < 64 ? 32 : 16;

// A block's shared memory: streamed tiles, and what its draws have in common.
template <int D>
struct TileStages {
  static constexpr int kStride = D + kPadding;

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
// The same with biases, and with the columns that the block's rows see, of which there are
// `row_tiles` times 64.
template <int D, int row_tiles = 1>
struct Stages : TileStages<D> {
  static constexpr int kRows = row_tiles * kTileRows, kBiases = row_tiles * kDistances;

  __host__ __device__ explicit Stages(SharedArena& arena)
      : TileStages<D>(arena),
        biases(arena.take<float>(size_t{2} * kBiases)),
        begins(arena.take<int>(kRows)),
        ends(arena.take<int>(kRows)) {}

  // Of tile n, as BiasRow has them for the last 64 rows.
  __device__ __forceinline__ float* bias(int n) const { return biases + n % 2 * kBiases; }
  __device__ __forceinline__ void set_range(const Range& range) const {
    begins[threadIdx.x] = range.begin;
    ends[threadIdx.x] = range.end;
  }
  // Of head h of row b.
  __device__ __forceinline__ void set_draws(const Problem& p, int b, int h) const {
    if (p.drops() && threadIdx.x == 0)
      *this->draws = {p.draws(b, h), p.row_time(b), key_time(p, b)};
  }

  float* biases;
  int *begins, *ends;
};

// Rows that lie at equal steps; null: some do not, or are not all there.
template <typename T>
struct EvenRows {
  T* first = nullptr;
  int64_t step = 0;
};

// Where rows of one head of one row of the batch are, from a column on; at(n) is null where nothing
// is to be read or written. even(n, count) is `count` rows from n on.
template <typename T>
__device__ __forceinline__ T* row_of(const SequenceView<T>& view, int64_t b, int64_t n, int64_t h) {
  return view.data + b * view.batch_stride + n * view.time_stride + h * view.head_stride;
}
// Queries before `end`, at most T.
template <typename T>
struct QueryRows {
  const SequenceView<T>& view;
  const uint8_t* mask;
  int b, h, end, column = 0;

  __device__ __forceinline__ int64_t width() const { return view.K - column; }
  __device__ __forceinline__ T* somewhere() const { return view.data; }
  __device__ __forceinline__ T* at(int t) const {
    if (t >= end || !is_set(mask, b * view.T + t)) return nullptr;
    return row_of(view, b, t, h) + column;
  }
  __device__ __forceinline__ EvenRows<T> even(int t, int count) const {
    if (mask != nullptr || t + count > end) return {};
    return {row_of(view, b, t, h) + column, view.time_stride};
  }
};
template <typename T>
struct KeyRows {
  const SequenceView<T>&now, &past;
  const uint8_t *mask, *past_mask;
  int past_tokens, b, g, column = 0;

  __device__ __forceinline__ int64_t width() const { return now.K - column; }
  __device__ __forceinline__ T* somewhere() const { return now.data; }
  __device__ __forceinline__ T* at(int n) const {
    return n < past_tokens ? row_or_null(past, past_mask, n)
                           : row_or_null(now, mask, n - past_tokens);
  }
  __device__ __forceinline__ EvenRows<T> even(int n, int count) const {
    const int begin = n - past_tokens;
    if (mask != nullptr || begin < 0 || begin + count > now.T || now.data == nullptr) return {};
    return {row_of(now, b, begin, g) + column, now.time_stride};
  }
  __device__ __forceinline__ T* row_or_null(const SequenceView<T>& view, const uint8_t* valid,
                                            int n) const {
    const bool inside = view.data != nullptr && n >= 0 && n < view.T;
    if (!inside || !is_set(valid, b * view.T + n)) return nullptr;
    return row_of(view, b, n, g) + column;
  }
};

// Begins to copy `count` rows from `first` on by so many threads; rows that are not read and
// columns beyond the width become zeros.
template <int D, typename Rows>
__device__ __forceinline__ void begin_copy(AsyncCopies& copies, kernel_bf16* tile, const Rows& rows,
                                           int first, int count = kTileRows,
                                           int threads = kTileThreads) {
  constexpr int kRowStep = kTileThreads / (D / 8);
  const bool whole = count == kTileRows && threads == kTileThreads && rows.width() >= D;
  if (const auto even = rows.even(first, kTileRows); whole && even.first != nullptr) {
    // Pointers go on by steps: addresses of every part would cost more than the products.
    const int row = static_cast<int>(threadIdx.x) / (D / 8);
    const int column = static_cast<int>(threadIdx.x) % (D / 8) * 8;
    const kernel_bf16* from = even.first + row * even.step + column;
    const int64_t step = kRowStep * even.step;
#pragma unroll
    for (int on = 0; on < kTileRows; on += kRowStep, from += step) {
      copies.copy(tile + (row + on) * TileStages<D>::kStride + column, from, true);
    }
    return;
  }
#pragma unroll 1  // registers
  for (int i = static_cast<int>(threadIdx.x); i < count * (D / 8); i += threads) {
    const int row = i / (D / 8), column = i % (D / 8) * 8;
    const kernel_bf16* from = column < rows.width() ? rows.at(first + row) : nullptr;
    const bool read = from != nullptr;
    copies.copy(tile + row * TileStages<D>::kStride + column,
                read ? from + column : rows.somewhere(), read);
  }
}

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
      : p(problem),
        table(p.bias == nullptr ? nullptr : p.bias + (p.bias_heads == 1 ? 0 : h) * p.bias_count) {}
  // Where entry 0 is in the table.
  __device__ __forceinline__ int64_t place(int64_t key, int64_t query) const {
    return key - query + p.bias_origin - p.P - (kTileRows - 1);
  }
  // This thread's entry; no pair that is seen has a distance beyond the table.
  __device__ __forceinline__ float entry(int64_t key, int64_t query) const {
    const int64_t i = place(key, query) + threadIdx.x;
    return table != nullptr && i >= 0 && i < p.bias_count ? table[i] * p.logit_unit : 0.0f;
  }
};

// A log-sum-exp in units of log 2, such that all weights of a query that sees nothing are 0.
__device__ __forceinline__ float log2_of(float log_sum_exp) {
  return log_sum_exp == -kInfinity ? kInfinity : log_sum_exp * kLog2E;
}

// Terms of the weight of a pair and of the gradient of its logit (in units of log 2), where `shift`
// is what its query adds to the gradients of all weights.
struct SoftmaxTerms {
  __device__ __forceinline__ float root(float logit, float log2_sum_exp) const {
    return tensor_core::fast_exp2(logit - log2_sum_exp);
  }
  __device__ __forceinline__ float weight(float root) const { return root; }
  __device__ __forceinline__ float gradient(float root, float dy_dot_v, float shift) const {
    return root * (dy_dot_v + shift);
  }
};

// Logits from products q . k: those of softmax are in units of log 2, for exp2.
struct Logits {
  const Problem& p;

  // Logits of the columns first + column to first + column + N of a tile that begins at `first`;
  // -infinity where a pair is not seen. Bit c of `valid` says whether column c of the tile counts.
  template <bool rows_are_keys, int N>
  __device__ __forceinline__ void make(ResultFragment (&x)[N / 8], const float* bias,
                                       const Sight& sight, int first, int column, uint64_t valid,
                                       int warp, int lane) const {
    const int own = warp * 16 + lane / 4, from = column + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = own + i / 2 * 8, at = from + 8 * j + i % 2;
        x[j].values[i] *= p.logit_scale;
        if (p.bias != nullptr)
          x[j].values[i] += bias[(rows_are_keys ? row - at : at - row) + kTileRows - 1];
      }
    }
    if (sight.covers(first + column, N) && valid == ~uint64_t{0}) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own + half * 8, begin = sight.begins[row];
      const auto length = static_cast<unsigned>(max(sight.ends[row] - begin, 0));
      // Columns before the range are at distances that are huge without a sign.
      const int distance = first + from - begin;
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        if (static_cast<unsigned>(distance + i / 2 * 8 + i % 2) < length) continue;
        x[i / 2].values[2 * half + i % 2] = -kInfinity;
      }
    }
    if (valid == ~uint64_t{0}) return;
    const uint64_t own_columns = valid >> from;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      if ((own_columns >> (i / 2 * 8 + i % 2) & 1) != 0) continue;
      x[i / 2].values[i % 2] = x[i / 2].values[2 + i % 2] = -kInfinity;
    }
  }

  // As SoftmaxTerms; of relu squared the root is max(x, 0).
  __device__ __forceinline__ float root(float logit, float log2_sum_exp) const {
    if (p.normalised()) return SoftmaxTerms{}.root(logit, log2_sum_exp);
    return logit < 0 ? 0.0f : logit;
  }
  __device__ __forceinline__ float weight(float root) const {
    return p.normalised() ? root : root * root;
  }
  __device__ __forceinline__ float gradient(float root, float dy_dot_v, float shift) const {
    if (p.normalised()) return SoftmaxTerms{}.gradient(root, dy_dot_v, shift);
    return 2 * root * dy_dot_v;
  }
};

// The tiles of keys and values of head g that a block's queries of row b, from `first` on, see one
// after another; of values the columns from `value` on.
template <int D, int row_tiles = 1>
struct KeyStream {
  const Call& call;
  const Stages<D, row_tiles>& shared;
  const Sight& sight;
  const BiasRow& bias;
  AsyncCopies& copies;
  int b, g, first, count, value, lane;
  // For the tile that was begun last.
  uint64_t valid = 0;
  float entries[row_tiles] = {};

  __device__ __forceinline__ int key(int n) const { return sight.block.begin + n * kTileRows; }
  // Begins to copy tile n; an empty group of copies where there is none.
  __device__ __forceinline__ void begin(int n) {
    if (n < count) {
      const Problem& p = call.problem;
      using Rows = KeyRows<const kernel_bf16>;
      begin_copy<D>(copies, shared.tile(n, 0),
                    Rows{call.k, call.past_k, p.key_mask, p.past_mask, static_cast<int>(p.P), b, g},
                    key(n));
      begin_copy<D>(
          copies, shared.tile(n, 1),
          Rows{call.v, call.past_v, p.key_mask, p.past_mask, static_cast<int>(p.P), b, g, value},
          key(n));
      valid = valid_keys(p, b, key(n), lane);
#pragma unroll
      for (int i = 0; i < row_tiles; ++i) {
        entries[i] = bias.entry(key(n), first + (row_tiles - 1) * kTileRows - i * kDistances);
      }
    }
    copies.commit();
  }
  // Stores the biases of tile n, which was begun last: only now are they waited for.
  __device__ __forceinline__ void store_bias(int n) const {
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

// Writes a warp's 16 rows of results times `factor`, those from `first` on, by way of its 16 rows
// of a tile that no other warp reads any more.
template <int D, typename Rows>
__device__ __forceinline__ void store_rows(const ResultFragment (&results)[D / 8], float factor,
                                           kernel_bf16* tile, const Rows& rows, int first, int warp,
                                           int lane) {
  constexpr int kStride = TileStages<D>::kStride;
  kernel_bf16* mine = tile + warp * 16 * kStride;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *word_at(mine, kStride, lane, half, j) =
          pack(results[j].values[2 * half] * factor, results[j].values[2 * half + 1] * factor);
    }
  }
  __syncwarp();
  constexpr int kStep = 32 / (D / 8);  // rows that a warp writes at once
  const int row = lane / (D / 8), column = lane % (D / 8) * 8;
  const kernel_bf16* from = mine + row * kStride + column;
  first += warp * 16;
  if (const auto even = rows.even(first, 16); rows.width() >= D && even.first != nullptr) {
    kernel_bf16* at = even.first + row * even.step + column;
    const int64_t step = kStep * even.step;
#pragma unroll
    for (int on = 0; on < 16; on += kStep, at += step) {
      *reinterpret_cast<Eight*>(at) = *reinterpret_cast<const Eight*>(from + on * kStride);
    }
    return;
  }
#pragma unroll 1
  for (int on = 0; on < 16; on += kStep) {
    kernel_bf16* at = column < rows.width() ? rows.at(first + row + on) : nullptr;
    if (at == nullptr) continue;
    *reinterpret_cast<Eight*>(at + column) = *reinterpret_cast<const Eight*>(from + on * kStride);
  }
}

}  // namespace linnet::cuda::block_attention_fast_detail
