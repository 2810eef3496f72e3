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

struct Range {
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

// Columns that are seen by each of the block's rows, in shared memory; by all rows of the warp, by
// one of them, by one of the block.
struct Sight {
  const int *begins, *ends;
  Range warp_all, warp_any, block;

  // A warp has `rows` of the block's, 16 or 32.
  __device__ __forceinline__ Sight(const int* all_begins, const int* all_ends, int warp, int lane,
                                   int rows = 16)
      : begins(all_begins), ends(all_ends) {
    const int row = warp * rows + lane % rows;
    warp_all.begin = warp_combine<Most>(begins[row], Caller{});
    warp_all.end = warp_combine<Least>(ends[row], Caller{});
    warp_any.begin = warp_combine<Least>(begins[row], Caller{});
    warp_any.end = warp_combine<Most>(ends[row], Caller{});
    int least = begins[lane], most = ends[lane];
#pragma unroll
    for (int on = 32; on < 4 * rows; on += 32) {
      least = min(least, begins[lane + on]);
      most = max(most, ends[lane + on]);
    }
    block.begin = warp_combine<Least>(least, Caller{});
    block.end = warp_combine<Most>(most, Caller{});
  }
  // Lets tiles begin with a key whose time is a multiple of four, `time` being that of key 0.
  __device__ __forceinline__ void align(int64_t time) {
    if (block.begin < block.end) block.begin -= static_cast<int>((block.begin + time) & 3);
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

}  // namespace linnet::cuda::block_attention_fast_detail
