// Parts of the tensor-core kernels of listed attention, besides the fragments of block attention's.
// Internal to this folder.
//
// A warp has 16 rows of its own, queries of one list or places of it. Places are looked up (list,
// then mask) two tiles of 64 before they are computed and lie in shared memory as numbers of keys,
// so that copies of rows begin without waiting for them.
#pragma once

#include "attention/primitives/block_attention/cuda/fast_tiles.h"
#include "attention/primitives/listed_attention/cuda/fast.h"

namespace linnet::cuda::listed_attention_fast_detail {

using block_attention_fast_detail::add_weighted;
using block_attention_fast_detail::are_whole;
using block_attention_fast_detail::begin_copy;
using block_attention_fast_detail::drop;
using block_attention_fast_detail::DropoutDraws;
using block_attention_fast_detail::Eight;
using block_attention_fast_detail::for_values;
using block_attention_fast_detail::kBlocks;
using block_attention_fast_detail::kept_of_keys;
using block_attention_fast_detail::kept_of_queries;
using block_attention_fast_detail::kLog2E;
using block_attention_fast_detail::kQueryBlocks;
using block_attention_fast_detail::kStep;
using block_attention_fast_detail::kTileRows;
using block_attention_fast_detail::kTileThreads;
using block_attention_fast_detail::load_rows;
using block_attention_fast_detail::log2_of;
using block_attention_fast_detail::multiply_transposed;
using block_attention_fast_detail::QueryRows;
using block_attention_fast_detail::Range;
using block_attention_fast_detail::row_inside;
using block_attention_fast_detail::row_of;
using block_attention_fast_detail::SoftmaxTerms;
using block_attention_fast_detail::store_rows;
using block_attention_fast_detail::tiles_of;
using block_attention_fast_detail::TileStages;
using block_attention_fast_detail::value_tiles;
using block_attention_fast_detail::values_of;
using listed_attention_fast::Backward;
using listed_attention_fast::Call;
using listed_attention_fast::Reads;
using listed_attention_fast::Writes;
using Problem = listed_attention_detail::ListedProblem<kernel_bf16>;

// Calls body with the width of the call's tiles, a constant; values may take several.
template <typename Body>
void with_width(const Call& call, const Body& body) {
  if (std::max(call.q.K, call.v.K) <= 64) return body(std::integral_constant<int, 64>{});
  return body(std::integral_constant<int, 128>{});
}

inline int tiles_of_values(const Call& call) {
  int tiles = 1;
  with_width(call, [&](auto width) { tiles = value_tiles<decltype(width)::value>(call); });
  return tiles;
}

// Instead of a key in a place: nothing is there to be seen; a number beyond the keys.
inline constexpr int kNoKey = -1, kBeyond = -2;

// Up to 64 queries of one list of head h of row b.
struct QueryTile {
  int b, h, first, count;
  __device__ __forceinline__ int end() const { return first + count; }
};
// A block's queries, their list and their key head. Read again from shared memory after every
// barrier, for want of registers.
struct ListPlace {
  QueryTile tile;
  const int32_t* list;
  int g;
};

// A block's shared memory: tiles, and the contents of places.
template <int D>
struct ListStages : TileStages<D> {
  __host__ __device__ explicit ListStages(SharedArena& arena)
      : TileStages<D>(arena),
        keys(arena.take<int>(size_t{3} * kTileRows)),
        place(arena.take<ListPlace>(1)) {}

  // Of tile n: one is computed, one copied, one looked up.
  __device__ __forceinline__ int* places(int n) const { return keys + n % 3 * kTileRows; }
  // Of head h of row b; places take the place of keys and their times.
  __device__ __forceinline__ void set_draws(const Problem& p, int b, int h) const {
    if (threadIdx.x == 0) *this->draws = {p.draws(b, h), p.time_offset, 0};
  }

  int* keys;
  ListPlace* place;
};

// Begins to copy the keys and values, of head g of row b, that 64 places name; of values the
// columns from `value` on. Places without a key and columns beyond the widths become zeros. A row's
// place is looked up once for both, and where it is takes one product each.
template <int D>
__device__ __forceinline__ void begin_gathered(AsyncCopies& copies, kernel_bf16* keys,
                                               kernel_bf16* values, const int* places,
                                               const Call& call, int b, int g, int value,
                                               int threads = kTileThreads) {
  constexpr int kStride = TileStages<D>::kStride;
  const int first = static_cast<int>(threadIdx.x) / (D / 8), step = threads / (D / 8);
  const int column = static_cast<int>(threadIdx.x) % (D / 8) * 8;
  const bool in_keys = column < call.k.K, in_values = value + column < call.v.K;
  const kernel_bf16* all_keys = row_inside(call.k, b, 0, g) + column;
  const kernel_bf16* all_values = row_inside(call.v, b, 0, g) + value + column;
  int to = first * kStride + column;
#pragma unroll 4
  for (int row = first; row < kTileRows; row += step, to += step * kStride) {
    const int found = places[row];
    const int64_t key = static_cast<uint32_t>(max(found, 0));
    copies.copy(keys + to, all_keys + key * call.k.time_stride, found >= 0 && in_keys);
    copies.copy(values + to, all_values + key * call.v.time_stride, found >= 0 && in_values);
  }
}

// How many tiles the queries of a whole list are, and how many queries list number `list` has.
inline int64_t tiles_of_list(const Problem& p) {
  return tiles_of(std::min(p.options.group, p.Tq));
}
__device__ __forceinline__ int queries_of_list(const Problem& p, int list) {
  return static_cast<int>(min(p.options.group, p.Tq - list * p.options.group));
}
// Warps for a block whose rows are such a tile.
inline unsigned threads_of_tile(const Problem& p) {
  const int64_t rows = std::min<int64_t>({p.options.group, p.Tq, kTileRows});
  return static_cast<unsigned>((rows + 15) / 16 * 32);
}
// That of this block, of `tiles` a list; blocks that run together share a list, then keys.
__device__ __forceinline__ QueryTile tile_of_block(const Problem& p, int tiles) {
  const int block = static_cast<int>(blockIdx.x), lists = static_cast<int>(p.lists);
  const int tile = block % tiles, list = block / tiles % lists, rest = block / tiles / lists;
  const int heads = static_cast<int>(p.H);
  const int first = static_cast<int>(list * p.options.group) + tile * kTileRows;
  const int count = min(kTileRows, queries_of_list(p, list) - tile * kTileRows);
  return {rest / heads, rest % heads, first, count};
}

// The key in place l of a list of row b.
__device__ __forceinline__ int key_in(const Problem& p, const int32_t* list, int b, int l) {
  if (l >= p.length) return kNoKey;
  const int key = list[l];
  if (key < kNoKey || key >= p.Tk) return kBeyond;
  return p.key_valid(b, key) ? key : kNoKey;
}

// Which places of a tile hold keys, as bits, and whether one is beyond them.
struct Seen {
  uint64_t keys;
  bool beyond;

  __device__ __forceinline__ Seen(const int* places, int lane) {
    const int low = places[lane], high = places[lane + 32];
    const unsigned first = __ballot_sync(~0u, low >= 0), second = __ballot_sync(~0u, high >= 0);
    keys = uint64_t{second} << 32 | first;
    beyond = __ballot_sync(~0u, low == kBeyond || high == kBeyond) != 0;
  }
};

// The tiles of keys and values of the block's list, one after another; of values the columns from
// `value` on.
template <int D>
struct ListStream {
  const Call& call;
  const ListStages<D>& shared;
  AsyncCopies& copies;
  int value;
  int found[2] = {};  // the first warp's last lookup

  __device__ __forceinline__ int count() const {
    return static_cast<int>(tiles_of(call.problem.length));
  }
  __device__ __forceinline__ void look_up(int n) {
    if (threadIdx.x >= kLanes) return;
    const ListPlace& at = *shared.place;
    for (int i = 0; i < 2; ++i) {
      const int l = n * kTileRows + i * kLanes + static_cast<int>(threadIdx.x);
      found[i] = key_in(call.problem, at.list, at.tile.b, l);
    }
  }
  // Stores tile n, which was looked up last: only now is it waited for.
  __device__ __forceinline__ void store(int n) const {
    if (threadIdx.x >= kLanes) return;
    for (int i = 0; i < 2; ++i) shared.places(n)[i * kLanes + threadIdx.x] = found[i];
  }
  // Begins to copy tile n; an empty group of copies where there is none.
  __device__ __forceinline__ void begin(int n) {
    if (n < count()) {
      begin_gathered<D>(copies, shared.tile(n, 0), shared.tile(n, 1), shared.places(n), call,
                        shared.place->tile.b, shared.place->g, value, static_cast<int>(blockDim.x));
    }
    copies.commit();
  }
  // Places of the first two tiles and copies of the first; barriers of the block.
  __device__ __forceinline__ void start() {
    __syncthreads();  // its place is there
    for (int n = 0; n < 2; ++n) {
      look_up(n);
      store(n);
    }
    __syncthreads();
    begin(0);
  }
  // Calls body(n) for every tile once it is there, while the next one is copied and the places of
  // the one after it are looked up.
  template <typename Body>
  __device__ __forceinline__ void for_tiles(const Body& body) {
    for (int n = 0; n < count(); ++n) {
      copies.wait<0>();
      __syncthreads();  // tile n is there; the other stage and its places are free
      look_up(n + 2);
      begin(n + 1);
      body(n);
      store(n + 2);
    }
  }
};

// The row of the bias of a query; null where there is none.
__device__ __forceinline__ const float* bias_row(const Problem& p, int b, int h, int t) {
  if (p.bias == nullptr) return nullptr;
  const int64_t row = (p.bias_rows == 1 ? 0 : b) * p.bias_heads + (p.bias_heads == 1 ? 0 : h);
  return p.bias + (row * p.Tq + t) * p.length;
}

// The first of this lane's two rows, the other is 8 later; found again each time, for want of
// registers.
__device__ __forceinline__ int own_row() {
  const int thread = recomputed(static_cast<int>(threadIdx.x));
  return thread / 32 * 16 + thread % 32 / 4;
}

// Logits, in units of log 2, from products of a warp's 16 queries with keys: -infinity where a
// query does not count or a place holds no key.
struct QueryLogits {
  const Problem& p;
  const QueryTile& tile;
  bool counts[2];  // this lane's two queries
  bool plain;      // all of the warp's queries count, and there is no bias

  __device__ __forceinline__ QueryLogits(const Problem& problem, const QueryTile& queries, int warp,
                                         int lane)
      : p(problem), tile(queries) {
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + half * 8 + lane / 4;
      counts[half] = row < tile.count && p.query_valid(tile.b, tile.first + row);
    }
    plain = __any_sync(~0u, p.bias != nullptr || !counts[0] || !counts[1]) == 0;
  }
  // Of N places from `first` on, the first of which is bit 0 of `seen`, less offset(i) of value i.
  template <int N, typename Offset>
  __device__ __forceinline__ void make(ResultFragment (&x)[N / 8], const Offset& offset, int first,
                                       uint64_t seen, int lane) const {
    for_values(x, [&](float& value, int i) { value = value * p.logit_scale - offset(i); });
    constexpr uint64_t kAll = ~uint64_t{0} >> (64 - N);
    const bool edge = !plain || (seen & kAll) != kAll;
    if (edge) hide<N>(x, first, seen, lane);
  }
  // What make() asks for each pair; also adds biases.
  template <int N>
  __device__ __forceinline__ void hide(ResultFragment (&x)[N / 8], int first, uint64_t seen,
                                       int lane) const {
    const int row = own_row();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t mine = counts[half] ? seen >> lane % 4 * 2 : 0;
      const float* bias =
          counts[half] ? bias_row(p, tile.b, tile.h, tile.first + row + 8 * half) : nullptr;
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        float& value = x[i / 2].values[2 * half + i % 2];
        const int column = i / 2 * 8 + i % 2;
        const bool sees = (mine >> column & 1) != 0;
        if (!sees) value = -kInfinity;
        if (sees && bias != nullptr) value += bias[first + lane % 4 * 2 + column] * kLog2E;
      }
    }
  }
};

}  // namespace linnet::cuda::listed_attention_fast_detail
