// The causal forward pass of slot attention on tensor cores: both passes in one kernel, memories
// and softmax on the chip. Of given weights a kernel of the same steps, without references, start
// and C_end.
//
// A block scans the chunks of one head and one tile of N value columns. From a tile of tokens
// (fast_tiles.h) it makes, with weights W,
//   C = start + tril(1) W,   R = (tril(Q K^T) W + start Q K~^T) / C,   P = softmax(scale R) / C,
//   O = tril(P W^T) V + (start P) V~,
//   K~ <- (start K~ + W^T K) / C_end,   V~ <- (start V~ + W^T V) / C_end.
// The next chunk's rows are copied meanwhile. Without queries it only writes.
//
// Few heads: blocks have splits of the sequence, whose memories are written first, side by side
// (fast_starts.h); bytes and operations once more are those of keys, values and logits.
//
// Bytes per token and head, N slots, K and V: 4 K + 4 V + 2 N; q, k and logits once more for every
// further value tile, from L2 where the tiles' blocks run side by side. Operations: 2 * 64 *
// (K + V + 3 * 64) * 10/16 (only squares on and below the diagonal) + 4 * 64 (K + V). N = K = V =
// 64: 640 bytes and 58,000 operations.
//
// More than 64 slots: a launch for each 64, of which those after the first read o and the log of
// the softmax's sum over the slots before (f32), and write both for all so far: all bytes again
// and 2 V + 8 more. N = 128: 1,420 bytes and 116,000 operations, 10,000 of them for products of
// tokens that are made twice.
#include <algorithm>
#include <utility>

#include "attention/primitives/slot_attention/cuda/fast.h"
#include "attention/primitives/slot_attention/cuda/fast_dropout.h"
#include "attention/primitives/slot_attention/cuda/fast_given.h"
#include "attention/primitives/slot_attention/cuda/fast_starts.h"

namespace linnet::cuda::slot_attention_fast {
namespace {

using namespace detail;

static_assert(tensor_core::kSplitChunk == kChunk, "splits are whole chunks");

// Of calls with more slots, [B,T,H]: the log of the softmax's sum over slots of launches before
// (null: none), and with these (null: they are all).
struct LogSums {
  const float* before;
  float* after;
};

// A chunk's tiles, double-buffered.
template <int M, int N>
struct Stage {
  kernel_bf16 *q, *k, *v, *logits;

  __device__ __forceinline__ Stage stage_of(int64_t chunk) const {
    const int64_t on = chunk % 2 * kChunk;
    return {q + on * (M + kPadding), k + on * (M + kPadding), v + on * (N + kPadding),
            logits + on * kSlotStride};
  }
};

template <int M, int N, bool reads>
struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(reads ? size_t{2} * kChunk * (M + kPadding) : 0),
               arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding)),
               arena.take<kernel_bf16>(size_t{2} * kChunk * (N + kPadding)),
               arena.take<kernel_bf16>(size_t{2} * kChunk * kSlotStride)},
        weights(arena.take<kernel_bf16>(size_t{kChunk} * kSlotStride)),
        keys(arena.take<kernel_bf16>(reads ? size_t{kSlots} * (M + kPadding) : 0)),
        values(arena.take<kernel_bf16>(reads ? size_t{kSlots} * (N + kPadding) : 0)),
        scales(arena),
        scan(arena.take<Scan>(1)),
        draws(arena.take<ScanDraws>(1)) {}
  Stage<M, N> stages;
  kernel_bf16* weights;
  kernel_bf16 *keys, *values;  // the memories as the tile finds them
  SlotScales scales;
  Scan* scan;
  ScanDraws* draws;
};

// Shares of a launch's slots, and of earlier launches, in the softmax of a warp's tokens.
struct Shares {
  float own[2] = {1, 1}, before[2] = {};
};
__device__ __forceinline__ Shares share_slots(const Forward& a, const LogSums& all,
                                              const Scan& scan, int token, const TileRows& tile,
                                              const float (&log_sums)[2]) {
  Shares shares;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!tile.has(half)) continue;
    const int64_t reader = scan.row * a.time() + token + tile.warp * 16 + half * 8 + tile.lane / 4;
    const int64_t at = reader * a.q.H + scan.head;
    const float before = all.before != nullptr ? all.before[at] : kNothing;
    const float largest = fmaxf(before, log_sums[half]);
    const float shift = largest == kNothing ? 0.0f : largest;
    const float own = expf(log_sums[half] - shift), others = expf(before - shift);
    const float sum = own + others, inverse = sum > 0 ? 1 / sum : 0.0f;
    shares.own[half] = own * inverse;
    shares.before[half] = others * inverse;
    if (tile.lane % 4 == 0) all.after[at] = sum > 0 ? shift + logf(sum) : kNothing;
  }
  return shares;
}

template <int M, int N, bool reads_it, bool given>
__device__ __forceinline__ void scan_forward(const Forward& a, int tiles, const LogSums& all) {
  SharedArena arena;
  const Layout<M, N, reads_it> shared(arena);
  const SlotScales& scales = shared.scales;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int slots = a.reading.slots;
  const int first = static_cast<int>(blockIdx.x % tiles) * N;
  const int64_t time = a.time();
  const unsigned number = blockIdx.x / tiles, scans = gridDim.x / tiles;
  const Scan& scan = begin_scan(shared.scan, a, number);
  if constexpr (reads_it) begin_draws(shared.draws, a.dropout, scan, a.reading);

  AsyncCopies copies;
  bool begins_one = false;  // token number `thread` of the chunk a segment
  const auto stage_of = [&](int token) {
    return shared.stages.stage_of((token - scan.begin) / kChunk);
  };
  // Returns which logits count.
  const auto begin = [&](int token, const ChunkSegment& segment) {
    const Stage<M, N> stage = stage_of(token);
    if constexpr (reads_it) {
      begin_rows<M>(copies, stage.q, segment, {a.q, a.query_mask, scan.row, token, scan.head, 0});
    }
    begin_rows<M>(copies, stage.k, segment, {a.k, a.key_mask, scan.row, token, scan.head, 0});
    begin_rows<N>(copies, stage.v, segment, {a.v, a.key_mask, scan.row, token, scan.head, first});
    const uint32_t counts = begin_rows<kSlots>(
        copies, stage.logits, segment, {a.logits, a.key_mask, scan.row, token, scan.head, 0});
    copies.commit();
    return counts;
  };
  const uint32_t summed = given ? a.given.summed() : ~0u;
  const auto begin_chunk = [&](int token) {
    if (thread < kChunk) begins_one = begins_segment(a.segments, scan.row, time, token + thread);
    return begin(token, {0, scan.rows(token), false});
  };

  ScannedMemory<M, reads_it> keys{{}, shared.keys, nullptr};
  ScannedMemory<N, reads_it> values{{}, shared.values, nullptr};
  const int64_t start = a.place_of_start(number, scans);
  keys.load(a.state_in.keys, start, slots, 0, static_cast<int>(a.k.K));
  values.load(a.state_in.values, start, slots, first, static_cast<int>(a.v.K));
  keys.publish();
  values.publish();
  load_normalizers<given>(scales, a.state_in.mass, start, slots);
  uint32_t logit_counts = begin_chunk(scan.begin);
  for (int token = scan.begin; token < scan.end; token += kChunk) {
    const Stage<M, N> stage = stage_of(token);
    keys.written = stage.k;
    values.written = stage.v;
    // A tile's logits are weights by now; those of later tiles stay.
    kernel_bf16* const weights = given ? stage.logits : shared.weights;
    kernel_bf16* const staging = given ? shared.weights : stage.logits;
    const int rows = scan.rows(token);
    copies.wait<0>();
    if constexpr (!given) exclude_logits(stage.logits, logit_counts);
    SegmentBits::publish<FourWarps>(scales.begins, begins_one);
    __syncthreads();  // this chunk is there; the other stage is free
    if (token + kChunk < scan.end) logit_counts = begin_chunk(token + kChunk);
    ChunkSegment segment{};
    TileRows tile{warp, lane, 0, 0};
    for (; tile.begin < rows; tile.begin = tile.end) {
      if (tile.begin == segment.end) {
        segment = scales.segment_from(tile.begin, rows);
        if (segment.end - segment.begin < rows) {
          const uint32_t counts = begin(token, segment);
          copies.wait<0>();
          if constexpr (!given) exclude_logits(stage.logits, counts);
          __syncthreads();  // its rows are there, and zeros
        }
        if (segment.fresh) {
          forget_all<given>(scales, keys, values);
          if constexpr (given) __syncthreads();  // memories are zeros
        }
      }
      tile.end = segment.end;
      if constexpr (!given) {
        const auto begin_memories = [&] {
          keys.begin_tile(scales);
          values.begin_tile(scales);
        };
        tile.end =
            begin_tile(scales, stage.logits, weights, tile.begin, segment.end, begin_memories);
      }

      if constexpr (reads_it) {
        if (tile.has_any()) {
          SlotRows reads, sums;
          const uint32_t kept = a.dropout.drops ? kept_slots(*shared.draws, tile, token) : 0;
          read_slots<M, true>(stage.q, stage.k, shared.keys, weights, scales.start, tile, reads,
                              sums, summed);
          if constexpr (given) make_divisors(a.given, sums);
          float log_sums[2];
          softmax(a.reading, lane, reads, sums, log_sums, nullptr);
          Shares shares;
          if (all.after != nullptr) {
            shares = share_slots(a, all, scan, token, tile, log_sums);
            scale_rows(reads.parts, shares.own);
          }
          if (a.dropout.drops) drop<kSlots>(kept, 0, a.dropout.row.keep, reads.parts);
#pragma unroll
          for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) reads.parts[j].values[i] *= sums.parts[j].values[i];
          }
          ResultFragment o[N / 8] = {};
          gather_slots<N>(reads, stage.v, shared.values, weights, tile, o);
          const TilePlace<kernel_bf16> to{a.o, a.query_mask, scan.row, token, scan.head, first};
          if (all.before != nullptr) add_stored_rows<N>(to, tile, shares.before, o);
          store_tile_rows<N>(o, staging, kSlotStride, tile, to);
        }
      }
      const bool writes = a.k.T > 0;
      write_weights_of<given>(
          scales, weights, tile, summed, writes, [] {}, keys, values);
    }
  }
  if (reads_it && blockIdx.y + 1 < gridDim.y) return;
  if constexpr (!given) {
    __syncthreads();  // without tokens no barrier came since the normalizers were loaded
    keys.finish(scales);
    values.finish(scales);
  }
  const int64_t place = a.reading.place(reads_it ? number : blockIdx.y * scans + number);
  values.store(a.state_out.values, place, slots, first, static_cast<int>(a.v.K));
  if (first != 0) return;
  keys.store(a.state_out.keys, place, slots, 0, static_cast<int>(a.k.K));
  if (a.state_out.mass != nullptr && thread < slots)
    a.state_out.mass[place + thread] = scales.log_normalizer[thread];
}

template <int M, int N, bool reads_it>
__global__ __launch_bounds__(kTileThreads,
                             2) void slot_attention_fast_forward(const __grid_constant__ Forward a,
                                                                 int tiles, LogSums all) {
  scan_forward<M, N, reads_it, false>(a, tiles, all);
}
template <bool reads_it>
__global__ __launch_bounds__(kTileThreads,
                             2) void slot_attention_given_forward(const __grid_constant__ Forward a,
                                                                  int tiles, LogSums all) {
  scan_forward<kGivenWidth, kGivenWidth, reads_it, true>(a, tiles, all);
}

// Columns of a tile of values.
template <int M>
constexpr int kColumns = M < 64 ? M : 64;

// Blocks that share a multiprocessor: of registers there are enough for two, of shared memory not
// for wide keys.
template <int M>
constexpr int64_t kBlocks = M < 128 ? 2 : 1;

template <int M>
int tiles_of(const Forward& call) {
  return std::max(1, static_cast<int>((call.v.K + kColumns<M> - 1) / kColumns<M>));
}

template <int M, bool reads>
void run(const Forward& call, int64_t splits) {
  constexpr int N = kColumns<M>;
  const int tiles = tiles_of<M>(call);
  // Alternating: results of the launches before, and of this one.
  Tensor log_sums[2];
  if (reads && call.logits.K > kSlots) {
    for (Tensor& sums : log_sums) {
      sums = Tensor::empty({call.q.B, call.q.T, call.q.H}, DType::f32, call.device);
    }
  }
  for_slots(call, [&](const Forward& part) {
    const Tensor before = part.reading.first == 0 ? Tensor() : log_sums[0];
    const LogSums sums{pointer_or_null<float>(before), pointer_or_null<float>(log_sums[1])};
    const dim3 grid(blocks_for(call.memories() * call.q.H * tiles, 1),
                    static_cast<unsigned>(splits));
    const size_t bytes = shared_bytes<Layout<M, N, reads>>();
    if constexpr (M == kGivenWidth) {
      if (call.given.are) {
        launch({"slot_attention_given_forward", grid, kTileThreads, bytes},
               slot_attention_given_forward<reads>, part, tiles, sums);
      }
    }
    if (!call.given.are) {
      launch({"slot_attention_fast_forward", grid, kTileThreads, bytes},
             slot_attention_fast_forward<M, N, reads>, part, tiles, sums);
    }
    std::swap(log_sums[0], log_sums[1]);
  });
}

// Calls body with the width of keys' tiles as std::integral_constant.
template <typename Body>
auto for_width(int64_t keys, const Body& body) {
  if (keys <= 16) return body(std::integral_constant<int, 16>{});
  if (keys <= 32) return body(std::integral_constant<int, 32>{});
  if (keys <= 64) return body(std::integral_constant<int, 64>{});
  return body(std::integral_constant<int, 128>{});
}
// The same for a call.
template <typename Body>
auto for_width_of(const Forward& call, const Body& body) {
  return for_width(call.given.are ? kGivenWidth : call.k.K, body);
}

}  // namespace

// A launch for each kSlots of them, which each read all keys and values.
constexpr int64_t kMaxSlots = 512;

bool covers(int64_t slots, int64_t keys, int64_t values) {
  const auto fits = [](int64_t width) { return width > 0 && width % 8 == 0; };
  return fits(slots) && slots <= kMaxSlots && fits(keys) && keys <= 128 && fits(values);
}

bool covers_given(int64_t slots, int64_t keys, int64_t values) {
  return keys <= kGivenWidth && values <= kGivenWidth &&
         covers(slots, keys, values == 0 ? keys : values);
}

size_t forward_shared_memory(int64_t keys) {
  return for_width(keys,
                   [](auto width) { return shared_bytes<Layout<width, kColumns<width>, true>>(); });
}

tensor_core::SplitSizes forward_splits(const Forward& call) {
  if (!call.can_split()) return {1, call.time()};
  const bool needs_starts = call.q.T > 0 && call.k.T > 0;
  return for_width_of(call, [&](auto width) {
    return tensor_core::split_sizes(call.time(), call.memories() * call.q.H * tiles_of<width>(call),
                                    kBlocks<width> * tensor_core::kMultiprocessors,
                                    {0, needs_starts ? kStartEighths : 0});
  });
}

void write_splits(const Call& call, int64_t tokens, int64_t count,
                  const SlotAttentionState<float>& to) {
  Forward writes;
  static_cast<Call&>(writes) = call;
  writes.q.T = 0;
  writes.split_tokens = tokens;
  writes.state_in = {};
  writes.state_out = to;
  for_width_of(writes, [&](auto width) { run<width, false>(writes, count); });
}

void forward(const Forward& call) {
  const tensor_core::SplitSizes splits = forward_splits(call);
  if (call.o.data == nullptr && splits.count > 1) return write_in_splits(call, splits);
  const Starts starts(call, splits);
  Forward cut = call;
  starts.give(cut);
  for_width_of(call, [&](auto width) {
    call.o.data != nullptr ? run<width, true>(cut, splits.count) : run<width, false>(cut, 1);
  });
}

}  // namespace linnet::cuda::slot_attention_fast
