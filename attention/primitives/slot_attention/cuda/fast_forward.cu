// The causal forward pass of slot attention on tensor cores: both passes in one kernel, memories
// and softmax on the chip.
//
// A block scans the chunks of one head and one tile of N value columns. From a tile of tokens
// (fast_tiles.h) it makes, with weights W,
//   C = start + tril(1) W,   R = (tril(Q K^T) W + start Q K~^T) / C,   P = softmax(scale R) / C,
//   O = tril(P W^T) V + (start P) V~,
//   K~ <- (start K~ + W^T K) / C_end,   V~ <- (start V~ + W^T V) / C_end.
// The next chunk's rows are copied meanwhile.
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
#include <utility>

#include "attention/primitives/slot_attention/cuda/fast.h"
#include "attention/primitives/slot_attention/cuda/fast_dropout.h"
#include "attention/primitives/slot_attention/cuda/fast_reads.h"

namespace linnet::cuda::slot_attention_fast {
namespace {

using namespace detail;

struct Arguments {
  Reads q, k, v, logits;
  Writes o;
  const uint8_t* query_mask;
  const uint8_t* key_mask;
  const int32_t* segments;
  const int32_t* spans;
  SlotAttentionState<const float> in;
  SlotAttentionState<float> out;
  SlotReading reading;
  Dropout dropout;
  int tiles;  // of value columns
  // For calls with more slots, [B,T,H]: the log of the softmax's sum over slots of launches before
  // (null: none), and with these (null: they are all).
  const float* log_sums_in;
  float* log_sums_out;
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

template <int M, int N>
struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding)),
               arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding)),
               arena.take<kernel_bf16>(size_t{2} * kChunk * (N + kPadding)),
               arena.take<kernel_bf16>(size_t{2} * kChunk * kSlotStride)},
        weights(arena.take<kernel_bf16>(size_t{kChunk} * kSlotStride)),
        keys(arena.take<kernel_bf16>(size_t{kSlots} * (M + kPadding))),
        values(arena.take<kernel_bf16>(size_t{kSlots} * (N + kPadding))),
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
__device__ __forceinline__ Shares share_slots(const Arguments& a, const Scan& scan, int64_t time,
                                              int token, const TileRows& tile,
                                              const float (&log_sums)[2]) {
  Shares shares;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!tile.has(half)) continue;
    const int64_t reader = scan.row * time + token + tile.warp * 16 + half * 8 + tile.lane / 4;
    const int64_t at = reader * a.q.H + scan.head;
    const float before = a.log_sums_in != nullptr ? a.log_sums_in[at] : kNothing;
    const float largest = fmaxf(before, log_sums[half]);
    const float shift = largest == kNothing ? 0.0f : largest;
    const float own = expf(log_sums[half] - shift), others = expf(before - shift);
    const float sum = own + others, inverse = sum > 0 ? 1 / sum : 0.0f;
    shares.own[half] = own * inverse;
    shares.before[half] = others * inverse;
    if (tile.lane % 4 == 0) a.log_sums_out[at] = sum > 0 ? shift + logf(sum) : kNothing;
  }
  return shares;
}

template <int M, int N>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_forward(Arguments a) {
  SharedArena arena;
  const Layout<M, N> shared(arena);
  const SlotScales& scales = shared.scales;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int first = static_cast<int>(blockIdx.x % a.tiles) * N;
  const int64_t time = max(a.q.T, a.k.T);
  const int64_t place = a.reading.place(blockIdx.x / a.tiles);
  const Scan& scan = begin_scan(shared.scan, a.spans, blockIdx.x / a.tiles, heads, time);
  const bool reads_it = a.o.data != nullptr;
  begin_draws(shared.draws, a.dropout, scan, a.reading);

  AsyncCopies copies;
  bool begins_one = false;  // token number `thread` of the chunk a segment
  const auto stage_of = [&](int token) {
    return shared.stages.stage_of((token - scan.begin) / kChunk);
  };
  // Returns which logits count.
  const auto begin = [&](int token, const ChunkSegment& segment) {
    const Stage<M, N> stage = stage_of(token);
    begin_rows<M>(copies, stage.q, segment, {a.q, a.query_mask, scan.row, token, scan.head, 0});
    begin_rows<M>(copies, stage.k, segment, {a.k, a.key_mask, scan.row, token, scan.head, 0});
    begin_rows<N>(copies, stage.v, segment, {a.v, a.key_mask, scan.row, token, scan.head, first});
    const uint32_t counts = begin_rows<kSlots>(
        copies, stage.logits, segment, {a.logits, a.key_mask, scan.row, token, scan.head, 0});
    copies.commit();
    return counts;
  };
  const auto begin_chunk = [&](int token) {
    if (thread < kChunk) begins_one = begins_segment(a.segments, scan.row, time, token + thread);
    return begin(token, {0, scan.rows(token), false});
  };

  MemoryTile<M> keys;
  MemoryTile<N> values;
  keys.load(a.in.keys, place, slots, 0, static_cast<int>(a.k.K));
  values.load(a.in.values, place, slots, first, static_cast<int>(a.v.K));
  keys.publish(shared.keys);
  values.publish(shared.values);
  scales.load_normalizers(a.in.mass, place, slots);
  uint32_t logit_counts = begin_chunk(scan.begin);
  for (int token = scan.begin; token < scan.end; token += kChunk) {
    const Stage<M, N> stage = stage_of(token);
    const int rows = scan.rows(token);
    copies.wait<0>();
    exclude_logits(stage.logits, logit_counts);
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
          exclude_logits(stage.logits, counts);
          __syncthreads();  // its rows are there, and zeros
        }
        if (segment.fresh) {
          keys.clear();
          values.clear();
          keys.publish(shared.keys);
          values.publish(shared.values);
          scales.forget_normalizers();
        }
      }
      tile.end = begin_tile(scales, stage.logits, shared.weights, tile.begin, segment.end);

      if (reads_it && tile.has_any()) {
        SlotRows reads, sums;
        const uint32_t kept = a.dropout.drops ? kept_slots(*shared.draws, tile, token) : 0;
        read_slots<M>(stage.q, stage.k, shared.keys, shared.weights, scales.start, tile, reads);
        sum_weights(shared.weights, scales, tile, sums);
        float log_sums[2];
        softmax(a.reading, lane, reads, sums, log_sums, nullptr);
        Shares shares;
        if (a.log_sums_out != nullptr) {
          shares = share_slots(a, scan, time, token, tile, log_sums);
        }
        if (a.dropout.drops) drop<kSlots>(kept, 0, a.dropout.row.keep, reads.parts);
#pragma unroll
        for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& passed = reads.parts[j].values[i];
            const float factor = shares.own[i / 2] * sums.parts[j].values[i];
            passed = tile.has(i / 2) ? passed * factor : 0.0f;
          }
        }
        ResultFragment o[N / 8] = {};
        gather_slots<N>(reads, stage.v, shared.values, shared.weights, scales.start, tile, o);
        const TilePlace<kernel_bf16> to{a.o, a.query_mask, scan.row, token, scan.head, first};
        if (a.log_sums_in != nullptr) add_stored_rows<N>(to, tile, shares.before, o);
        // The tile's logits are weights by now; those of later tiles stay.
        store_tile_rows<N>(o, stage.logits, kSlotStride, tile, to);
      }
      leave_totals(shared.weights, scales, tile);
      const auto start = [&](int slot) { return scales.start[slot]; };
      keys.scale(start);
      keys.add(shared.weights, stage.k, tile);
      values.scale(start);
      values.add(shared.weights, stage.v, tile);
      __syncthreads();  // nobody reads the memories any more; totals are there
      const auto inverse = [&](int slot) { return scales.inverse_total(slot); };
      keys.scale(inverse);
      keys.publish(shared.keys);
      values.scale(inverse);
      values.publish(shared.values);
      if (thread < kSlots) scales.log_normalizer[thread] = scales.normalizer_after(thread);
    }
  }
  values.store(a.out.values, place, slots, first, static_cast<int>(a.v.K));
  if (first != 0) return;
  keys.store(a.out.keys, place, slots, 0, static_cast<int>(a.k.K));
  if (a.out.mass != nullptr && thread < slots)
    a.out.mass[place + thread] = scales.log_normalizer[thread];
}

// Columns of a tile of values.
template <int M>
constexpr int kColumns = M < 64 ? M : 64;

template <int M>
void run(const Forward& call) {
  constexpr int N = kColumns<M>;
  Arguments a{};
  a.q = call.q;
  a.k = call.k;
  a.v = call.v;
  a.o = call.o;
  a.query_mask = call.query_mask;
  a.key_mask = call.key_mask;
  a.segments = call.segments;
  a.spans = call.spans.table;
  a.in = call.state_in;
  a.out = call.state_out;
  a.dropout = Dropout::of(call);
  a.tiles = static_cast<int>((call.v.K + N - 1) / N);
  // Alternating: results of the launches before, and of this one.
  Tensor log_sums[2];
  if (call.o.data != nullptr && call.logits.K > kSlots) {
    for (Tensor& sums : log_sums) {
      sums = Tensor::empty({call.q.B, call.q.T, call.q.H}, DType::f32, call.device);
    }
  }
  for_slots(call.options, call.logits.K, [&](const SlotReading& reading) {
    a.reading = reading;
    a.logits = reading.of(call.logits);
    a.log_sums_in = reading.first == 0 ? nullptr : pointer_or_null<float>(log_sums[0]);
    a.log_sums_out = pointer_or_null<float>(log_sums[1]);
    launch({"slot_attention_fast_forward",
            blocks_for(call.spans.memories(call.q.B) * call.q.H * a.tiles, 1), kTileThreads,
            shared_bytes<Layout<M, N>>()},
           slot_attention_fast_forward<M, N>, a);
    std::swap(log_sums[0], log_sums[1]);
  });
}

}  // namespace

// A launch for each kSlots of them, which each read all keys and values.
constexpr int64_t kMaxSlots = 512;

bool covers(int64_t slots, int64_t keys, int64_t values) {
  const auto fits = [](int64_t width) { return width > 0 && width % 8 == 0; };
  return fits(slots) && slots <= kMaxSlots && fits(keys) && keys <= 128 && fits(values);
}

size_t forward_shared_memory(int64_t keys) {
  if (keys <= 16) return shared_bytes<Layout<16, 16>>();
  if (keys <= 32) return shared_bytes<Layout<32, 32>>();
  if (keys <= 64) return shared_bytes<Layout<64, 64>>();
  return shared_bytes<Layout<128, 64>>();
}

void forward(const Forward& call) {
  if (call.k.K <= 16) return run<16>(call);
  if (call.k.K <= 32) return run<32>(call);
  if (call.k.K <= 64) return run<64>(call);
  return run<128>(call);
}

}  // namespace linnet::cuda::slot_attention_fast
