// What the tensor-core kernels of block attention are made of. A block has four warps and 64 rows
// of its own, queries or keys, 16 a warp; it streams past them the tiles of 64 rows of the other
// kind that any of its rows sees, two arrays of them, copied while the tile before is computed.
// Internal to attention/primitives/cuda.
//
// Keys are numbered past ones first, P + i being current key i of the row. So numbered, the keys
// that a query sees are one range, and so are the queries that see a key, whatever the pattern and
// the segments: a pair counts where its column lies in its row's range.
#pragma once

#include "attention/primitives/cuda/block_attention_fast.h"
#include "attention/primitives/cuda/linear_attention_tiles.h"

namespace linnet::cuda::block_attention_fast_detail {

using block_attention_detail::KeyRange;
using block_attention_detail::Piece;
using block_attention_fast::Call;
using block_attention_fast::Reads;
using block_attention_fast::Writes;
using linear_attention_detail::Eight;
using linear_attention_detail::kPadding;
using linear_attention_detail::kTileThreads;
using linear_attention_detail::TilePart;
using Problem = block_attention_detail::BlockProblem<kernel_bf16>;

inline constexpr int kTileRows = linear_attention_detail::kChunk;
inline constexpr int kDistances = 2 * kTileRows;  // that two tiles have, and one more
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr int kLargest = std::numeric_limits<int>::max();

__host__ __device__ constexpr int64_t tiles_of(int64_t count) {
  return (count + kTileRows - 1) / kTileRows;
}

// Calls body with the width of the call's tiles, a constant.
template <typename Body>
void with_width(const Call& call, const Body& body) {
  linear_attention_detail::for_width(std::max(call.q.K, call.v.K), body);
}

// Registers bound how many blocks share a multiprocessor.
template <int D>
inline constexpr int kBlocks = D < 128 ? 3 : 2;
// Columns of a tile that backward computes at once.
template <int D>
inline constexpr int kStep = D < 64 ? 32 : 16;

struct Range {
  int begin = kLargest, end = 0;
};

__device__ __forceinline__ bool key_valid(const Problem& p, int64_t b, int64_t number) {
  if (number < p.P) return is_set(p.past_mask, b * p.P + number);
  return number < p.P + p.Tk && is_set(p.key_mask, b * p.Tk + number - p.P);
}
// The number of a piece's first key.
__device__ __forceinline__ int64_t first_key(const Problem& p, const Piece& piece) {
  return p.P - piece.past + piece.key_begin;
}
__device__ __forceinline__ Range shifted(const KeyRange& range, int64_t by) {
  if (range.begin >= range.end) return {};
  return {static_cast<int>(range.begin + by), static_cast<int>(range.end + by)};
}
// The keys that query t of row b sees, valid or not.
__device__ __forceinline__ Range keys_of(const Problem& p, int64_t b, int64_t t) {
  if (t >= p.Tq || !p.query_valid(b, t)) return {};
  const Piece piece = p.piece(b, t);
  return shifted(visible_keys(piece, p.options, t - piece.query_begin), first_key(p, piece));
}
// The queries that see a key, valid or not.
__device__ __forceinline__ Range queries_of(const Problem& p, int64_t b, int64_t number) {
  if (!key_valid(p, b, number)) return {};
  const Piece piece = p.piece(b, max(number - p.P, int64_t{0}));
  return shifted(visible_queries(piece, p.options, number - first_key(p, piece)),
                 piece.query_begin);
}

struct Least {
  __device__ int operator()(int a, int b) const { return min(a, b); }
};
struct Most {
  __device__ int operator()(int a, int b) const { return max(a, b); }
};

// What a block has in shared memory.
template <int D>
struct Stages {
  static constexpr int kStride = D + kPadding;

  __host__ __device__ explicit Stages(SharedArena& arena)
      : tiles(arena.take<kernel_bf16>(size_t{4} * kTileRows * kStride)),
        biases(arena.take<float>(size_t{2} * kDistances)),
        begins(arena.take<int>(kTileRows)),
        ends(arena.take<int>(kTileRows)) {}

  // Of streamed tile n, in stages by turns, array 0 or 1.
  __device__ __forceinline__ kernel_bf16* tile(int n, int array) const {
    return tiles + (n % 2 * 2 + array) * kTileRows * kStride;
  }
  __device__ __forceinline__ float* bias(int n) const { return biases + n % 2 * kDistances; }
  __device__ __forceinline__ void set_range(const Range& range) const {
    begins[threadIdx.x] = range.begin;
    ends[threadIdx.x] = range.end;
  }

  kernel_bf16* tiles;
  float* biases;
  int *begins, *ends;  // columns that the block's rows see
};

// Columns that are seen by each of the block's rows, in shared memory; by all rows of the warp, by
// one of them, by one of the block.
struct Sight {
  const int *begins, *ends;
  Range warp_all, warp_any, block;

  __device__ __forceinline__ Sight(const int* all_begins, const int* all_ends, int warp, int lane)
      : begins(all_begins), ends(all_ends) {
    const int row = warp * 16 + lane % 16;
    warp_all.begin = warp_combine<Most>(begins[row], Caller{});
    warp_all.end = warp_combine<Least>(ends[row], Caller{});
    warp_any.begin = warp_combine<Least>(begins[row], Caller{});
    warp_any.end = warp_combine<Most>(ends[row], Caller{});
    block.begin = warp_combine<Least>(min(begins[lane], begins[lane + 32]), Caller{});
    block.end = warp_combine<Most>(max(ends[lane], ends[lane + 32]), Caller{});
  }
  __device__ __forceinline__ int tiles() const {
    return block.begin < block.end ? static_cast<int>(tiles_of(block.end - block.begin)) : 0;
  }
  __device__ __forceinline__ bool reaches(int first, int count) const {
    return first < warp_any.end && first + count > warp_any.begin;
  }
  __device__ __forceinline__ bool covers(int first, int count) const {
    return first >= warp_all.begin && first + count <= warp_all.end;
  }
};

// Where rows of one head of one row of the batch are; at(n) is null where nothing is to be read or
// written.
template <typename T>
__device__ __forceinline__ T* row_of(const SequenceView<T>& view, int64_t b, int64_t n, int64_t h) {
  return view.data + b * view.batch_stride + n * view.time_stride + h * view.head_stride;
}
template <typename T>
__device__ __forceinline__ T* row_or_null(const SequenceView<T>& view, const uint8_t* mask, int b,
                                          int n, int h) {
  if (view.data == nullptr || n >= view.T || !is_set(mask, b * view.T + n)) return nullptr;
  return row_of(view, b, n, h);
}
template <typename T>
struct QueryRows {
  const SequenceView<T>& view;
  const uint8_t* mask;
  int b, h;

  __device__ __forceinline__ int64_t width() const { return view.K; }
  __device__ __forceinline__ T* somewhere() const { return view.data; }
  __device__ __forceinline__ T* at(int n) const { return row_or_null(view, mask, b, n, h); }
};
template <typename T>
struct KeyRows {
  const SequenceView<T>&now, &past;
  const uint8_t *mask, *past_mask;
  int past_tokens, b, g;

  __device__ __forceinline__ int64_t width() const { return now.K; }
  __device__ __forceinline__ T* somewhere() const { return now.data; }
  __device__ __forceinline__ T* at(int n) const {
    if (n < past_tokens) return row_or_null(past, past_mask, b, n, g);
    return row_or_null(now, mask, b, n - past_tokens, g);
  }
};

// Begins to copy 64 rows from `first` on; rows that are not read and columns beyond the width
// become zeros.
template <int D, typename Rows>
__device__ __forceinline__ void begin_copy(AsyncCopies& copies, kernel_bf16* tile, const Rows& rows,
                                           int first) {
  using Part = TilePart<D>;
#pragma unroll 1  // registers
  for (int i = 0; i < Part::kCount; ++i) {
    const int row = Part::row(i), column = Part::column(i);
    const kernel_bf16* from = column < rows.width() ? rows.at(first + row) : nullptr;
    const bool read = from != nullptr;
    copies.copy(tile + row * Part::kStride + column, read ? from + column : rows.somewhere(), read);
  }
}

// A warp's 16 rows of a tile as left operands.
template <int D>
__device__ __forceinline__ void load_rows(const kernel_bf16* tile, int warp, int lane,
                                          LeftFragment (&rows)[D / 16]) {
  constexpr int kStride = Stages<D>::kStride;
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    rows[i] = load_left(tile + warp * 16 * kStride + i * 16, kStride, lane);
  }
}

// sums += rows tile^T, of N rows of a tile; left(i) is columns 16 i and on of 16 rows.
template <int D, int N, typename Left>
__device__ __forceinline__ void multiply_transposed(const Left& left, const kernel_bf16* tile,
                                                    int lane, ResultFragment (&sums)[N / 8]) {
  constexpr int kStride = Stages<D>::kStride;
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
  constexpr int kStride = Stages<D>::kStride;
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

// The row of the bias table that a head reads, times what logits are multiplied by. Entry i of a
// tile is that of distance: first key - first query - 63 + i.
struct BiasRow {
  const float* table;
  int64_t count, offset;
  float unit;

  __device__ __forceinline__ BiasRow(const Problem& p, int64_t h, float logit_unit)
      : table(p.bias == nullptr ? nullptr : p.bias + (p.bias_heads == 1 ? 0 : h) * p.bias_count),
        count(p.bias_count),
        offset(p.bias_origin - p.P - (kTileRows - 1)),
        unit(logit_unit) {}
  // Where entry 0 is in the table.
  __device__ __forceinline__ int64_t place(int64_t key, int64_t query) const {
    return key - query + offset;
  }
  // This thread's entry; no pair that is seen has a distance beyond the table.
  __device__ __forceinline__ float entry(int64_t key, int64_t query) const {
    const int64_t i = place(key, query) + threadIdx.x;
    return table != nullptr && i >= 0 && i < count ? table[i] * unit : 0.0f;
  }
};

// What makes logits of products q . k: those of soft-max are in units of log 2, for exp2.
struct Logits {
  const Problem& p;
  float scale;

  __device__ __forceinline__ explicit Logits(const Problem& problem)
      : p(problem), scale(static_cast<float>(p.options.scale) * unit()) {}
  __device__ __forceinline__ float unit() const { return p.normalised() ? kLog2E : 1.0f; }

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
        x[j].values[i] *= scale;
        if (p.bias != nullptr)
          x[j].values[i] += bias[(rows_are_keys ? row - at : at - row) + kTileRows - 1];
      }
    }
    if (sight.covers(first + column, N) && valid == ~uint64_t{0}) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own + half * 8, begin = sight.begins[row] - first;
      const int end = sight.ends[row] - first;
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        const int at = from + i / 2 * 8 + i % 2;
        const bool seen = at >= begin && at < end && (valid >> at & 1) != 0;
        if (!seen) x[i / 2].values[2 * half + i % 2] = -kInfinity;
      }
    }
  }

  // Of one pair: what its weight and the gradient of its logit are made of, exp(x) / sum or max(x,
  // 0).
  __device__ __forceinline__ float root(float logit, float log2_sum_exp) const {
    if (p.normalised()) return exp2f(logit - log2_sum_exp);
    return logit < 0 ? 0.0f : logit;
  }
  __device__ __forceinline__ float weight(float root) const {
    return p.normalised() ? root : root * root;
  }
  __device__ __forceinline__ float gradient(float root, float dy_dot_v, float y_dot_dy) const {
    return p.normalised() ? root * (dy_dot_v - y_dot_dy) : 2 * root * dy_dot_v;
  }
};

// Which of 64 keys from `number` on are valid, as bits.
__device__ __forceinline__ uint64_t valid_keys(const Problem& p, int64_t b, int64_t number,
                                               int lane) {
  if (p.key_mask == nullptr && p.past_mask == nullptr) return ~uint64_t{0};
  const unsigned low = __ballot_sync(~0u, key_valid(p, b, number + lane));
  const unsigned high = __ballot_sync(~0u, key_valid(p, b, number + 32 + lane));
  return uint64_t{high} << 32 | low;
}

// The tiles of keys and values of head g that 64 queries of row b, from `first` on, see one after
// another.
template <int D>
struct KeyStream {
  const Call& call;
  const Stages<D>& shared;
  const Sight& sight;
  const BiasRow& bias;
  AsyncCopies& copies;
  int b, g, first, count, lane;
  // Of the tile that was begun last.
  uint64_t valid = 0;
  float entry = 0;

  __device__ __forceinline__ int key(int n) const { return sight.block.begin + n * kTileRows; }
  // Begins to copy tile n; an empty group of copies where there is none.
  __device__ __forceinline__ void begin(int n) {
    if (n < count) {
      const Problem& p = call.problem;
      using Rows = KeyRows<const kernel_bf16>;
      begin_copy<D>(copies, shared.tile(n, 0),
                    Rows{call.k, call.past_k, p.key_mask, p.past_mask, static_cast<int>(p.P), b, g},
                    key(n));
      begin_copy<D>(copies, shared.tile(n, 1),
                    Rows{call.v, call.past_v, p.key_mask, p.past_mask, static_cast<int>(p.P), b, g},
                    key(n));
      valid = valid_keys(p, b, key(n), lane);
      entry = bias.entry(key(n), first);
    }
    copies.commit();
  }
  // Stores the biases of tile n, which was begun last: only now are they waited for.
  __device__ __forceinline__ void store_bias(int n) const { shared.bias(n)[threadIdx.x] = entry; }
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
  constexpr int kStride = Stages<D>::kStride;
  kernel_bf16* mine = tile + warp * 16 * kStride;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto* to = reinterpret_cast<uint32_t*>(mine + (lane / 4 + 8 * half) * kStride + 8 * j +
                                             lane % 4 * 2);
      *to = pack(results[j].values[2 * half] * factor, results[j].values[2 * half + 1] * factor);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const int place = i * 32 + lane, row = place / (D / 8), column = place % (D / 8) * 8;
    kernel_bf16* to = column < rows.width() ? rows.at(first + warp * 16 + row) : nullptr;
    if (to == nullptr) continue;
    *reinterpret_cast<Eight*>(to + column) =
        *reinterpret_cast<const Eight*>(mine + row * kStride + column);
  }
}

}  // namespace linnet::cuda::block_attention_fast_detail
