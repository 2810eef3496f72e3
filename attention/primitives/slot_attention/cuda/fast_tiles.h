// Tiles of tokens, of which the tensor-core kernels of slot attention are made: their weights, and
// rows from and to device memory. Internal to this folder.
//
// A block has four warps and scans chunks of 64 tokens of one head. A chunk is one tile, as a rule:
// tokens [begin, end) whose weights are relative to one reference per slot,
//
//   w_j = exp(a_j - r),  r = max(log normalizer before the tile, a_begin),
//
// so that no weight exceeds exp(kMaxRise): a tile ends before a logit that would, and the chunk's
// next tile begins there. A reference never looks ahead, and earlier writes count start = exp(log
// normalizer - r) <= 1. With c_t = start + sum_{begin <= j <= t} w_j a token reads
//
//   K~_t = (start K~ + sum_{begin <= j <= t} w_j k_j) / c_t,   V~_t likewise.
//
// A chunk in which segments begin is copied segment by segment, each time with zeros for the tokens
// of others (ChunkSegment), and memories are cleared between: of a segment nothing reaches the next
// one, whatever it holds.
//
// Given weights w_j = a_j need no reference: a tile is a chunk's segment, its weights are its
// logits where they were copied, and memories are sums,
//
//   K~_t = (S + sum_{begin <= j <= t} w_j k_j) / d(c_t),   c_t = c before + sum_j w_j,
//
// with d = max(c, floor), or 1 and c of |w_j|. In SlotScales `log_normalizer` and `start` are c
// before the tile.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast.h"
#include "attention/tensor_core/fast_math.h"
#include "attention/tensor_core/state_tile.h"
#include "core/cuda/block_reduce.h"

namespace linnet::cuda::slot_attention_fast::detail {

using namespace tensor_core;

inline constexpr int kSlots = 64;  // of a launch; those beyond a call's own are never written
inline constexpr int kSlotStride = kSlots + kPadding;
inline constexpr float kMaxRise = 40;
inline constexpr float kNothing = -std::numeric_limits<float>::infinity();  // a log of 0

// One value per slot for a warp's 16 tokens (rows lane / 4 and lane / 4 + 8).
struct SlotRows {
  ResultFragment parts[kSlots / 8];
};
// The slot of value i of part j.
__device__ __forceinline__ int slot_of(int j, int i, int lane) {
  return 8 * j + lane % 4 * 2 + i % 2;
}
// Combined over the lanes that have the same rows.
__device__ __forceinline__ float row_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}
__device__ __forceinline__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

// A warp's part in a tile of tokens.
struct TileRows {
  int warp, lane, begin, end;

  // Squares of 16 tokens: the first that has some of it, and the one after the last.
  __device__ __forceinline__ int first_square() const { return begin / 16; }
  __device__ __forceinline__ int end_square() const { return (end + 15) / 16; }
  __device__ __forceinline__ bool has_all_squares() const {
    return begin < 16 && end > kChunk - 16;
  }
  // Whether any of the warp's rows is in it; a warp without has nothing to do for it.
  __device__ __forceinline__ bool has_any() const {
    return first_square() <= warp && warp < end_square();
  }
  // Whether the row of values 2 half and 2 half + 1 is in it.
  __device__ __forceinline__ bool has(int half) const {
    const int row = warp * 16 + half * 8 + lane / 4;
    return begin <= row && row < end;
  }
};

// Rows [begin, end) of a chunk, of one segment.
struct ChunkSegment {
  int begin, end;
  bool fresh;  // they begin their segment

  __device__ __forceinline__ bool has(int row) const { return begin <= row && row < end; }
  __device__ __forceinline__ bool has_all() const { return begin == 0 && end == kChunk; }
};

// The scan of a block: head `head` of sequence `number`, of spans, or of rows where there are none,
// or a split of it.
struct Scan {
  int number, head, row, begin, end;

  // For a chunk that begins with `token`.
  __device__ __forceinline__ int rows(int token) const { return min(end - token, kChunk); }
};
// Split `first_split` + blockIdx.y of scan number `scan` over all heads, for all threads of the
// block. It stays in shared memory: registers are for memories of slots.
__device__ __forceinline__ const Scan& begin_scan(Scan* shared, const Call& call, unsigned scan,
                                                  int64_t first_split = 0) {
  if (threadIdx.x == 0) {
    const int heads = static_cast<int>(call.q.H), number = static_cast<int>(scan) / heads;
    RowPart part = part_of_state(call.spans.table, number, call.time());
    if (call.split_tokens > 0) {
      part.begin = (first_split + blockIdx.y) * call.split_tokens;
      part.end = min(part.end, part.begin + call.split_tokens);
    }
    *shared = {number, static_cast<int>(scan) % heads, static_cast<int>(part.row),
               static_cast<int>(part.begin), static_cast<int>(part.end)};
  }
  __syncthreads();
  return *shared;
}

// The references of a tile, slot by slot, in shared memory.
struct SlotScales {
  __host__ __device__ explicit SlotScales(SharedArena& arena)
      : log_normalizer(arena.take<double>(kSlots)),
        reference(arena.take<float>(kSlots)),
        start(arena.take<float>(kSlots)),
        total(arena.take<float>(kSlots)),
        scratch(arena.take<float>(33)),
        begins(arena.take<uint32_t>(SegmentBits::kWords)) {}
  double* log_normalizer;  // before the tile; of given weights their sum
  float* reference;        // r
  float* start;
  float* total;  // c of the last token
  float* scratch;
  uint32_t* begins;  // of the chunk's tokens, those that begin segments

  // The normalizers that a scan begins with, from number `place` on; null: nothing was written.
  __device__ __forceinline__ void load_normalizers(const double* from, int64_t place,
                                                   int slots) const {
    const int slot = static_cast<int>(threadIdx.x);
    if (slot >= kSlots) return;
    const bool given = from != nullptr && slot < slots;
    log_normalizer[slot] = given ? from[place + slot] : static_cast<double>(kNothing);
    total[slot] = 1;  // memories are means
  }
  // Nothing was written by the segment that begins.
  __device__ __forceinline__ void forget_normalizers() const { load_normalizers(nullptr, 0, 0); }
  // The same of given weights.
  __device__ __forceinline__ void load_sums(const double* from, int64_t place, int slots) const {
    const int slot = static_cast<int>(threadIdx.x);
    if (slot >= kSlots) return;
    set_sum(slot, from != nullptr && slot < slots ? from[place + slot] : 0.0);
  }
  __device__ __forceinline__ void set_sum(int slot, double sum) const {
    log_normalizer[slot] = sum;
    start[slot] = static_cast<float>(sum);
  }
  // For the chunk that begins with `token`.
  __device__ __forceinline__ void mark_begins(const int32_t* segments, const Scan& scan,
                                              int64_t time, int token) const {
    const int row = static_cast<int>(threadIdx.x);
    SegmentBits::publish<FourWarps>(
        begins, row < kChunk && begins_segment(segments, scan.row, time, token + row));
  }
  // The chunk's segment that begins with a row, or ends with one; of so many rows.
  __device__ __forceinline__ ChunkSegment segment_from(int row, int rows) const {
    SegmentBits segments;
    segments.load(begins);
    return {row, min(rows, segments.end(row)), segments.start(row) == row};
  }
  __device__ __forceinline__ ChunkSegment segment_to(int end) const {
    SegmentBits segments;
    segments.load(begins);
    const int start = segments.start(end - 1);
    return {max(start, 0), end, start >= 0};
  }

  __device__ __forceinline__ float inverse_total(int slot) const {
    const float all = total[slot];
    return all > 0 ? reciprocal(all) : 0.0f;
  }
  // By the log normalizer before the tile and its first logit.
  __device__ __forceinline__ void set_reference(int slot, double normalizer,
                                                float first_logit) const {
    // Finite, so that logits of nothing are infinitely far below it.
    reference[slot] = fmaxf(fmaxf(static_cast<float>(normalizer), first_logit), -1e38f);
    start[slot] = normalizer == static_cast<double>(kNothing)
                      ? 0.0f
                      : expf(static_cast<float>(normalizer - static_cast<double>(reference[slot])));
  }
  __device__ __forceinline__ double normalizer_after(int slot) const {
    const double all = total[slot];
    return all > 0 ? reference[slot] + log(all) : static_cast<double>(kNothing);
  }
};

// begin_copy() of a chunk, rows beyond the segment are zeros.
template <int width, typename Team = FourWarps>
__device__ __forceinline__ uint32_t begin_rows(AsyncCopies& copies, kernel_bf16* tile,
                                               const ChunkSegment& segment, const ReadPlace& from) {
  return begin_copy<width, Team>(copies, tile, from, 0, segment);
}

// Logits that do not count become those of nothing, in the parts that this thread copied.
template <typename Team = FourWarps>
__device__ __forceinline__ void exclude_logits(kernel_bf16* logits, uint32_t counts) {
  using Part = TilePart<kSlots, Team>;
  if (counts == Part::kAll) return;
  constexpr uint32_t kBoth = 0xFF80FF80u;
#pragma unroll 1
  for (int i = 0; i < Part::kCount; ++i) {
    if ((counts >> i & 1) != 0) continue;
    *reinterpret_cast<Eight*>(logits + Part::row(i) * kSlotStride +
                              Part::column()) = {{kBoth, kBoth, kBoth, kBoth}};
  }
}

__device__ __forceinline__ float weight_of(float logit, float reference) {
  const float weight = fast_exp(logit - reference);
  return logit == kNothing ? 0.0f : weight;
}

// Weights of rows [begin, end), and zeros elsewhere, in this thread's parts; `weights` may be
// `logits`. Returns the first row with a logit too far above its reference, kChunk where none is.
__device__ __forceinline__ int write_weights(const kernel_bf16* logits, kernel_bf16* weights,
                                             const float* reference, int begin, int end) {
  using Part = TilePart<kSlots>;
  float references[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) references[i] = reference[Part::column() + i];
  int high = kChunk;
#pragma unroll
  for (int i = 0; i < Part::kCount; ++i) {
    const int row = Part::row(i), at = row * kSlotStride + Part::column();
    Eight elements = {};
    if (begin <= row && row < end) {
      elements = *reinterpret_cast<const Eight*>(logits + at);
      float rise = kNothing;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float low = low_of(elements.words[word]) - references[2 * word];
        const float high_one = high_of(elements.words[word]) - references[2 * word + 1];
        rise = fmaxf(rise, fmaxf(low, high_one));
        elements.words[word] = pack(fast_exp(low), fast_exp(high_one));
      }
      if (rise > kMaxRise) high = min(high, row);
    }
    *reinterpret_cast<Eight*>(weights + at) = elements;
  }
  return high;
}

// The tile that begins at row `begin` of a segment that ends with row `most` and whose logits are
// there: sets its references and writes its weights; returns its end. All threads of the block; a
// barrier comes last, before which arrive() is called.
template <typename Arrive>
__device__ __forceinline__ int begin_tile(const SlotScales& scales, const kernel_bf16* logits,
                                          kernel_bf16* weights, int begin, int most,
                                          const Arrive& arrive) {
  const int slot = static_cast<int>(threadIdx.x);
  if (slot < kSlots) {
    scales.set_reference(slot, scales.log_normalizer[slot],
                         load(logits + begin * kSlotStride + slot));
  }
  __syncthreads();
  const int high = write_weights(logits, weights, scales.reference, begin, most);
  arrive();
  if (__syncthreads_or(high < kChunk ? 1 : 0) == 0) return most;
  const int end = -static_cast<int>(block_max(-static_cast<float>(high), scales.scratch));
  write_weights(logits, weights, scales.reference, begin, end);
  __syncthreads();
  return end;
}

// Those bits of both elements of every word.
template <typename Fragment>
__device__ __forceinline__ Fragment bits_of(Fragment fragment, uint32_t bits) {
#pragma unroll
  for (size_t i = 0; i < sizeof(fragment.words) / sizeof(uint32_t); ++i) fragment.words[i] &= bits;
  return fragment;
}

// sums += left rows, of 16 rows in shared memory, of which `bits` count.
template <int columns>
__device__ __forceinline__ void add_rows(const LeftFragment& left, const kernel_bf16* rows,
                                         int stride, int lane, ResultFragment (&sums)[columns / 8],
                                         uint32_t bits = ~0u) {
#pragma unroll
  for (int j = 0; j < columns / 16; ++j) {
    const RightFragments right = load_right(rows + j * 16, stride, lane);
    for (int half = 0; half < 2; ++half) {
      multiply(left, bits_of(right.halves[half], bits), sums[2 * j + half]);
    }
  }
}
// sums += left rows^T, of 16 columns of `count` rows.
template <int count>
__device__ __forceinline__ void add_transposed(const LeftFragment& left, const kernel_bf16* rows,
                                               int stride, int lane,
                                               ResultFragment (&sums)[count / 8]) {
#pragma unroll
  for (int j = 0; j < count / 16; ++j) {
    const RightFragments right = load_right_transposed(rows + j * 16 * stride, stride, lane);
    for (int half = 0; half < 2; ++half) multiply(left, right.halves[half], sums[2 * j + half]);
  }
}

// A left operand of ones; where `triangle`, only those right of the diagonal and on it, or left.
template <bool right_of_it>
__device__ __forceinline__ LeftFragment ones_of(bool triangle, int lane) {
  constexpr uint32_t kBoth = 0x3F803F80u;
  if (!triangle) return {{kBoth, kBoth, kBoth, kBoth}};
  const int row = lane / 4, column = lane % 4 * 2;
  const bool first = right_of_it ? column >= row : column <= row;
  const bool second = right_of_it ? column + 1 >= row : column + 1 <= row;
  const uint32_t edge = (first ? 0x3F80u : 0u) | (second ? 0x3F800000u : 0u);
  return {{edge, right_of_it ? 0 : kBoth, right_of_it ? kBoth : 0, edge}};
}

// Values of slots, the same for each of a warp's tokens.
__device__ __forceinline__ void spread_slots(const float* elements, int lane, SlotRows& rows) {
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.parts[j].values[i] = elements[slot_of(j, i, lane)];
  }
}

// c of a warp's tokens, by those bits of weights.
__device__ __forceinline__ void sum_weights(const kernel_bf16* weights, const SlotScales& scales,
                                            const TileRows& tile, SlotRows& sums,
                                            uint32_t bits = ~0u) {
  const int lane = tile.lane;
  spread_slots(scales.start, lane, sums);
#pragma unroll 1  // registers
  for (int square = tile.first_square(); square <= tile.warp; ++square) {
    add_rows<kSlots>(ones_of<false>(square == tile.warp, lane), weights + square * 16 * kSlotStride,
                     kSlotStride, lane, sums.parts, bits);
  }
}

// c of the tile's last token, of 16 slots per warp; of given weights the tile's own sum, by `bits`.
// As in MemoryTile::add, start is added by itself.
template <bool given = false>
__device__ __forceinline__ void leave_totals(const kernel_bf16* weights, const SlotScales& scales,
                                             const TileRows& tile, uint32_t bits = ~0u) {
  ResultFragment sums = {};
#pragma unroll 1  // registers
  for (int square = tile.first_square(); square < tile.end_square(); ++square) {
    const LeftFragment left = load_left_transposed(
        weights + square * 16 * kSlotStride + tile.warp * 16, kSlotStride, tile.lane);
    multiply(bits_of(left, bits), ones(), sums);
  }
  if (tile.lane % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int slot = tile.warp * 16 + half * 8 + tile.lane / 4;
    scales.total[slot] = (given ? 0.0f : scales.start[slot]) + sums.values[2 * half];
  }
}

// Writes those of a warp's rows that the tile has to device memory by way of `staging`, the
// chunk's rows of a tile in shared memory, of which this warp alone has the tile's in use. Masked
// rows become zeros, those beyond the sequence are left out.
template <int width>
__device__ __forceinline__ void store_tile_rows(const ResultFragment (&results)[width / 8],
                                                kernel_bf16* staging, int stride,
                                                const TileRows& tile,
                                                const TilePlace<kernel_bf16>& to) {
  kernel_bf16* rows = staging + tile.warp * 16 * stride;
  const int lane = tile.lane;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < width / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t* at = word_at(rows, stride, lane, half, j);
      if (tile.has(half)) *at = pack(results[j].values[2 * half], results[j].values[2 * half + 1]);
    }
  }
  __syncwarp();
  const int first = tile.warp * 16;
  TilePlace<kernel_bf16> warp_to = to;
  warp_to.begin += first;
  write_out<width>(rows, stride, lane, warp_to, tile.begin - first, tile.end - first);
}

// results += their contents in device memory, in those of a warp's rows that the tile has, times
// the factor of rows lane / 4 and lane / 4 + 8.
template <int width>
__device__ __forceinline__ void add_stored_rows(const TilePlace<kernel_bf16>& from,
                                                const TileRows& tile, const float (&factors)[2],
                                                ResultFragment (&results)[width / 8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t token = from.begin + tile.warp * 16 + half * 8 + tile.lane / 4;
    if (!tile.has(half) || token >= from.view.T) continue;
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
      const int column = 8 * j + tile.lane % 4 * 2;
      if (from.column + column >= from.view.K) continue;
      const auto pair = *reinterpret_cast<const uint32_t*>(from.at(token, column));
      results[j].values[2 * half] += factors[half] * low_of(pair);
      results[j].values[2 * half + 1] += factors[half] * high_of(pair);
    }
  }
}

}  // namespace linnet::cuda::slot_attention_fast::detail
