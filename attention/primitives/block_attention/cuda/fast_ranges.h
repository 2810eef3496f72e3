// Which pairs of queries and keys the tensor-core kernels of block attention look at. Internal to
// this folder.
//
// Keys are numbered past ones first, P + i being current key i of the row. So numbered, the keys
// that a query sees are one range, and so are the queries that see a key, whatever the pattern and
// the segments: a pair counts where its column lies in its row's range.
#pragma once

#include "attention/primitives/block_attention/cuda/problem.h"

namespace linnet::cuda::block_attention_fast_detail {

using block_attention_detail::KeyRange;
using block_attention_detail::Segment;
using Problem = block_attention_detail::BlockProblem;

inline constexpr int kTileRows = 64;
// Larger than any number of a row's token; from it a tile's first column, which may be negative, is
// subtracted.
inline constexpr int kMax = std::numeric_limits<int>::max() - kTileRows;

__host__ __device__ constexpr int64_t tiles_of(int64_t count) {
  return (count + kTileRows - 1) / kTileRows;
}

struct alignas(8) Range {
  int begin = kMax, end = 0;
};

__device__ __forceinline__ bool key_valid(const Problem& p, int64_t b, int64_t number) {
  if (number < 0) return false;
  if (number < p.P) return is_set(p.past_mask, b * p.P + number);
  return number < p.P + p.Tk && is_set(p.key_mask, b * p.Tk + number - p.P);
}
// The time of key number 0 of a row, for draws.
__device__ __forceinline__ int64_t key_time(const Problem& p, int64_t b) {
  return (p.cross ? 0 : p.row_time(b)) - p.P;
}
// The number of a segment's first key.
__device__ __forceinline__ int64_t first_key(const Problem& p, const Segment& segment) {
  return p.P - segment.past + segment.key_begin;
}
__device__ __forceinline__ Range shifted(const KeyRange& range, int64_t by) {
  if (range.begin >= range.end) return {};
  return {static_cast<int>(range.begin + by), static_cast<int>(range.end + by)};
}
// The keys that query t of row b sees, valid or not.
__device__ __forceinline__ Range keys_of(const Problem& p, int64_t b, int64_t t) {
  if (t >= p.Tq || !p.query_valid(b, t)) return {};
  const Segment segment = p.segment(b, t);
  return shifted(visible_keys(segment, p.options, t - segment.query_begin), first_key(p, segment));
}
// The queries that see a key, valid or not.
__device__ __forceinline__ Range queries_of(const Problem& p, int64_t b, int64_t number) {
  if (!key_valid(p, b, number)) return {};
  const Segment segment = p.segment(b, max(number - p.P, int64_t{0}));
  return shifted(visible_queries(segment, p.options, number - first_key(p, segment)),
                 segment.query_begin);
}

struct Least {
  __device__ int operator()(int a, int b) const { return min(a, b); }
};
struct Most {
  __device__ int operator()(int a, int b) const { return max(a, b); }
};

// Which of 64 keys from `number` on are valid, as bits.
__device__ __forceinline__ uint64_t valid_keys(const Problem& p, int64_t b, int64_t number,
                                               int lane) {
  if (p.key_mask == nullptr && p.past_mask == nullptr) return ~uint64_t{0};
  const unsigned low = __ballot_sync(~0u, key_valid(p, b, number + lane));
  const unsigned high = __ballot_sync(~0u, key_valid(p, b, number + 32 + lane));
  return uint64_t{high} << 32 | low;
}

// How many tiles a range is.
__device__ __forceinline__ int tiles_between(const Range& range) {
  return max(range.end - range.begin + kTileRows - 1, 0) / kTileRows;
}

// Columns that are seen by each of the block's rows, by all rows of a warp, by one of them, and by
// one of the block's. In shared memory, for want of registers.
struct Sight {
  const int *begins, *ends;
  Range* ranges;  // of each warp: all, any; of the block
  Range block;

  // A warp has `rows` of the block's, 16 or 32. The ranges are there after a barrier.
  __device__ __forceinline__ Sight(const int* all_begins, const int* all_ends, Range* all_ranges,
                                   int warp, int lane, int rows = 16)
      : begins(all_begins), ends(all_ends), ranges(all_ranges) {
    const int row = warp * rows + lane % rows;
    Range all, any;
    all.begin = warp_combine<Most>(begins[row], Caller{});
    all.end = warp_combine<Least>(ends[row], Caller{});
    any.begin = warp_combine<Least>(begins[row], Caller{});
    any.end = warp_combine<Most>(ends[row], Caller{});
    int least = begins[lane], most = ends[lane];
#pragma unroll
    for (int on = 32; on < 4 * rows; on += 32) {
      least = min(least, begins[lane + on]);
      most = max(most, ends[lane + on]);
    }
    block.begin = warp_combine<Least>(least, Caller{});
    block.end = warp_combine<Most>(most, Caller{});
    if (lane != 0) return;
    ranges[2 * warp] = all;
    ranges[2 * warp + 1] = any;
    if (warp == 0) ranges[kBlockRange] = block;
  }
  static constexpr int kBlockRange = 8;
  // Lets tiles begin with a key whose time is a multiple of four, `time` being that of key 0.
  __device__ __forceinline__ void align(int64_t time) {
    if (block.begin >= block.end) return;
    block.begin -= static_cast<int>((block.begin + time) & 3);
    if (threadIdx.x == 0) ranges[kBlockRange] = block;
  }
  __device__ __forceinline__ int tiles() const {
    return tiles_between(block);
  }
};

// The columns of the tile from `first` on that a warp looks at, `valid` saying which count: those
// from `begin` to before `end`, in steps of `step`, hold all that one of its rows sees.
struct TileSight {
  int begin, end, all_begin, all_end;

  __device__ __forceinline__ TileSight(const Sight& sight, int warp, int first, uint64_t valid,
                                       int step) {
    const Range all = sight.ranges[2 * warp], any = sight.ranges[2 * warp + 1];
    begin = max(any.begin - first, 0) & -step;
    end = min(any.end - first, kTileRows);
    all_begin = all.begin - first;
    all_end = valid == ~uint64_t{0} ? all.end - first : 0;
  }
  // Whether all rows see each of these columns, and all of them count.
  __device__ __forceinline__ bool covers(int column, int count) const {
    return column >= all_begin && column + count <= all_end;
  }
};

}  // namespace linnet::cuda::block_attention_fast_detail
