// The gradient of queries, forward in time, and the inputs of the scan backward in time; see
// fast_backward.h.
#include <algorithm>

#include "attention/primitives/slot_attention/cuda/fast_backward.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {
namespace {

template <int M>
struct Layout {
  static constexpr size_t kTile = size_t{kChunk} * (M + kPadding);
  static constexpr size_t kSlotTile = size_t{kChunk} * kSlotStride;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : q(arena.take<kernel_bf16>(kTile)),
        k(arena.take<kernel_bf16>(kTile)),
        v(arena.take<kernel_bf16>(kTile)),
        d_o(arena.take<kernel_bf16>(kTile)),
        logits(arena.take<kernel_bf16>(kSlotTile)),
        weights(arena.take<kernel_bf16>(kSlotTile)),
        keys(arena.take<kernel_bf16>(kTile)),
        values(arena.take<kernel_bf16>(kTile)),
        scales(arena),
        scan(arena.take<Scan>(1)),
        draws(arena.take<ScanDraws>(1)) {}
  kernel_bf16 *q, *k, *v, *d_o, *logits, *weights;
  kernel_bf16 *keys, *values;  // the memories as the tile finds them
  SlotScales scales;
  Scan* scan;
  ScanDraws* draws;
};

// gradients (u d, in products of read_slots) -> dr; returns m of both rows.
__device__ __forceinline__ void read_gradients(const SlotRows& probabilities,
                                               const SlotRows& inverses, SlotRows& gradients,
                                               float (&means)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float mean = 0;
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        gradients.parts[j].values[i] *= inverses.parts[j].values[i];
        mean += probabilities.parts[j].values[i] * gradients.parts[j].values[i];
      }
    }
    mean = row_sum(mean);
    means[half] = mean;
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        float& value = gradients.parts[j].values[i];
        value = probabilities.parts[j].values[i] * (value - mean);
      }
    }
  }
}

// Dropped elements get a minus.
__device__ __forceinline__ void mark_dropped(uint32_t kept, SlotRows& probabilities) {
#pragma unroll
  for (int i = 0; i < kSlots / 2; ++i) {
    float& p = probabilities.parts[i / 4].values[i % 4];
    if ((kept >> i & 1) == 0) p = -p;
  }
}

template <int M>
__global__ __launch_bounds__(kTileThreads,
                             2) void slot_attention_fast_queries(BackwardArguments a) {
  SharedArena arena;
  const Layout<M> shared(arena);
  const SlotScales& scales = shared.scales;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = max(a.q.T, a.k.T), place = a.reading.place(blockIdx.x);
  const Scan& scan = begin_scan(shared.scan, a.spans, blockIdx.x, heads, time);
  begin_draws(shared.draws, a.dropout, scan, a.reading);

  MemoryTile<M> keys, values;
  keys.load(a.in.keys, place, slots, 0, static_cast<int>(a.k.K));
  values.load(a.in.values, place, slots, 0, static_cast<int>(a.v.K));
  keys.publish(shared.keys);
  values.publish(shared.values);
  scales.load_normalizers(a.in.mass, place, slots);
  AsyncCopies copies;
  for (int token = scan.begin; token < scan.end; token += kChunk) {
    const int64_t chunk = a.chunk_number(scan, time, token);
    const int rows = scan.rows(token);
    if (thread < slots) a.chunk_normalizers[chunk * slots + thread] = scales.log_normalizer[thread];
    scales.mark_begins(a.segments, scan, time, token);
    __syncthreads();  // where segments begin is there
    uint64_t tiles = 0;
    ChunkSegment segment{};
    TileRows tile{warp, lane, 0, 0};
    for (; tile.begin < rows; tile.begin = tile.end) {
      if (tile.begin == segment.end) {
        segment = scales.segment_from(tile.begin, rows);
        begin_sequences<M>(copies, shared, a, scan, token, segment);
        const uint32_t logit_counts = begin_rows<kSlots>(
            copies, shared.logits, segment, {a.logits, a.key_mask, scan.row, token, scan.head, 0});
        copies.commit();
        if (segment.fresh) {
          keys.clear();
          values.clear();
          keys.publish(shared.keys);
          values.publish(shared.values);
          scales.forget_normalizers();
        }
        copies.wait<0>();
        exclude_logits(shared.logits, logit_counts);
        __syncthreads();  // the segment and the memories are there
      }
      tiles |= uint64_t{1} << tile.begin;
      tile.end = begin_tile(scales, shared.logits, shared.weights, tile.begin, segment.end);

      if (tile.has_any()) {
        SlotRows gradients, reads, sums;
        const uint32_t kept = a.dropout.drops ? kept_slots(*shared.draws, tile, token) : 0;
        const int64_t first_token = scan.row * time + token;
        read_slots<M>(shared.q, shared.k, shared.keys, shared.weights, scales.start, tile, reads);
        add_slots(a.other_reads, tile, first_token, heads, scan.head, slots, reads);
        sum_weights(shared.weights, scales, tile, sums);
        float log_sums[2];
        RowMeans row_means;
        softmax(a.reading, lane, reads, sums, log_sums, &row_means);
        read_slots<M>(shared.d_o, shared.v, shared.values, shared.weights, scales.start, tile,
                      gradients);
        add_slots(a.other_dreads, tile, first_token, heads, scan.head, slots, gradients);
        if (a.dropout.drops) drop<kSlots>(kept, 0, a.dropout.row.keep, gradients.parts);
        float means[2];
        read_gradients(reads, sums, gradients, means);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int reader = token + warp * 16 + half * 8 + lane / 4;
          if (lane % 4 != 0 || !tile.has(half)) continue;
          const int64_t at = (scan.row * time + reader) * heads + scan.head;
          a.shifts[at] = row_means.logits[half] / a.reading.scale;
          a.entropies[at] = row_means.entropies[half];
          a.means[at] = means[half];
        }
        if (a.dropout.drops) mark_dropped(kept, reads);
        // The tile's logits are weights by now; those of later tiles stay.
        store_tile_rows<kSlots>(reads.parts, shared.logits, kSlotStride, tile,
                                {a.probabilities, nullptr, scan.row, token, scan.head, 0});
        store_tile_rows<kSlots>(gradients.parts, shared.logits, kSlotStride, tile,
                                {a.dreads, nullptr, scan.row, token, scan.head, 0});
        if (a.dq.data != nullptr) {
#pragma unroll
          for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& passed = gradients.parts[j].values[i];
              const float factor = a.reading.scale * sums.parts[j].values[i];
              passed = tile.has(i / 2) ? passed * factor : 0.0f;
            }
          }
          ResultFragment dq[M / 8] = {};
          gather_slots<M>(gradients, shared.k, shared.keys, shared.weights, scales.start, tile, dq);
          store_tile_rows<M>(dq, shared.logits, kSlotStride, tile,
                             {a.dq, a.query_mask, scan.row, token, scan.head, 0});
        }
      }
      leave_totals(shared.weights, scales, tile);
      const auto start = [&](int slot) { return scales.start[slot]; };
      keys.scale(start);
      keys.add(shared.weights, shared.k, tile);
      values.scale(start);
      values.add(shared.weights, shared.v, tile);
      __syncthreads();  // nobody reads the tile or the memories any more; totals are there
      const auto inverse = [&](int slot) { return scales.inverse_total(slot); };
      keys.scale(inverse);
      keys.publish(shared.keys);
      values.scale(inverse);
      values.publish(shared.values);
      if (thread < kSlots) scales.log_normalizer[thread] = scales.normalizer_after(thread);
    }
    if (thread == 0) a.chunk_tiles[chunk] = static_cast<int64_t>(tiles);
  }
}

template <int M>
void run(const BackwardArguments& arguments) {
  launch({"slot_attention_fast_queries", blocks_for(arguments.scans * arguments.q.H, 1),
          kTileThreads, shared_bytes<Layout<M>>()},
         slot_attention_fast_queries<M>, arguments);
}

}  // namespace

void run_queries(const BackwardArguments& arguments) {
  const int64_t width = std::max(arguments.k.K, arguments.v.K);
  if (width <= 16) return run<16>(arguments);
  if (width <= 32) return run<32>(arguments);
  return run<64>(arguments);
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
