// The gradients of keys, values, logits and the carried memory, backward in time; see
// fast_backward.h.
#include <algorithm>

#include "attention/primitives/slot_attention/cuda/fast_backward.h"
#include "attention/primitives/slot_attention/cuda/fast_sums.h"

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
        weights(arena.take<kernel_bf16>(kSlotTile)),
        to_keys(arena.take<kernel_bf16>(kSlotTile)),
        to_values(arena.take<kernel_bf16>(kSlotTile)),
        surprises(arena.take<kernel_bf16>(kSlotTile)),
        keys(arena.take<kernel_bf16>(kTile)),
        values(arena.take<kernel_bf16>(kTile)),
        scales(arena),
        carried(arena.take<float>(kSlots)),
        shifts(arena.take<float>(kChunk)),
        means(arena.take<float>(kChunk)),
        entropies(arena.take<float>(kChunk)),
        whole_means(arena.take<float>(kChunk)),
        sums(arena.take<float>(size_t{kChunk / 16} * kSlots)),
        scan(arena.take<Scan>(1)) {}
  kernel_bf16 *q, *k, *v, *d_o;
  kernel_bf16* weights;              // logits, then w
  kernel_bf16 *to_keys, *to_values;  // dr and p, then X and Y
  kernel_bf16* surprises;            // -(dr (log p + h + 1) + p m (1 - d)) / c
  kernel_bf16 *keys, *values;        // GK and GV
  SlotScales scales;
  float* carried;                     // minus the sum of (dr r + p d u) / c of later tokens
  float *shifts, *means, *entropies;  // r' / scale and m, of the first part, and h
  float* whole_means;                 // m, of all parts
  float* sums;                        // of (dr r + p d u) / c over each warp's tokens
  Scan* scan;
};

// dr and p of a warp's tokens -> X and Y, 0 outside the tile; their surprises and sums beside them.
// Dropped elements have a negative p, the others are multiplied by `keep`.
template <int M>
__device__ __forceinline__ void pass_reads(const Layout<M>& shared, const TileRows& tile,
                                           float scale, float keep, const SlotRows& normalizers) {
  const int lane = tile.lane;
  const float back = -1 / scale;
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
    float sums[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.warp * 16 + half * 8 + lane / 4;
      const int at = row * kSlotStride + slot_of(j, 0, lane);
      auto* x = reinterpret_cast<uint32_t*>(shared.to_keys + at);
      auto* y = reinterpret_cast<uint32_t*>(shared.to_values + at);
      float inverses[2];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float normalizer = normalizers.parts[j].values[2 * half + odd];
        inverses[odd] = tile.has(half) && normalizer > 0 ? 1 / normalizer : 0.0f;
      }
      const float offset = shared.entropies[row] + 1;
      const auto surprise = [&](float p) { return p > 0 ? logf(p) + offset : 0.0f; };
      const float ps[2] = {low_of(*y), high_of(*y)};
      const float low = surprise(fabsf(ps[0])), high = surprise(fabsf(ps[1]));
      *x = pack(scale * low_of(*x) * inverses[0], scale * high_of(*x) * inverses[1]);
      const auto factor = [&](float p) { return p < 0 ? 0.0f : keep; };
      const auto dropped = [&](int odd) {
        return shared.whole_means[row] * fabsf(ps[odd]) * inverses[odd] * (1 - factor(ps[odd]));
      };
      *y = pack(factor(ps[0]) * ps[0] * inverses[0], factor(ps[1]) * ps[1] * inverses[1]);
      // From X as rounded, so that the common part of all keys or values cancels.
      const uint32_t pair =
          pack(back * low_of(*x) * low - dropped(0), back * high_of(*x) * high - dropped(1));
      *reinterpret_cast<uint32_t*>(shared.surprises + at) = pair;
      const float shift = shared.shifts[row], mean = shared.means[row];
      sums[0] += low_of(*x) * shift + low_of(*y) * mean - low_of(pair);
      sums[1] += high_of(*x) * shift + high_of(*y) * mean - high_of(pair);
    }
    leave_sums(sums, j, tile, shared.sums);
  }
}

// The gradients of a warp's logits; of what comes after the tile they have that of G's rests.
template <int M>
__device__ __forceinline__ void logit_gradients(const Layout<M>& shared, const TileRows& tile,
                                                SlotRows& gradients) {
  const int warp = tile.warp, lane = tile.lane;
  add_memory<M>(shared.k, shared.keys, tile, gradients);
  add_products<M>(shared.k, shared.q, shared.shifts, shared.to_keys, tile, gradients);
  add_memory<M>(shared.v, shared.values, tile, gradients);
  add_products<M>(shared.v, shared.d_o, shared.means, shared.to_values, tile, gradients);
#pragma unroll 1  // registers
  for (int square = warp; square < tile.end_square(); ++square) {
    add_rows<kSlots>(ones_of<true>(square == warp, lane),
                     shared.surprises + square * 16 * kSlotStride, kSlotStride, lane,
                     gradients.parts);
  }
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = (warp * 16 + half * 8 + lane / 4) * kSlotStride + slot_of(j, 0, lane);
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(shared.weights + at);
      gradients.parts[j].values[2 * half] *= low_of(pair);
      gradients.parts[j].values[2 * half + 1] *= high_of(pair);
    }
  }
}

template <int M>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_keys(BackwardArguments a) {
  SharedArena arena;
  const Layout<M> shared(arena);
  const SlotScales& scales = shared.scales;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = max(a.q.T, a.k.T), place = a.reading.place(blockIdx.x);
  const Scan& scan = begin_scan(shared.scan, a.spans, blockIdx.x, heads, time);

  MemoryTile<M> keys, values;  // GK and GV
  keys.load(a.dkeys_out, place, slots, 0, static_cast<int>(a.k.K));
  values.load(a.dvalues_out, place, slots, 0, static_cast<int>(a.v.K));
  if (thread < kSlots) shared.carried[thread] = thread < slots ? a.dsums[place + thread] : 0.0f;
  const auto start = [&](int slot) { return scales.start[slot]; };
  const auto inverse = [&](int slot) { return scales.inverse_total(slot); };
  AsyncCopies copies;
  const int last = (scan.end - scan.begin + kChunk - 1) / kChunk - 1;
  for (int token = scan.begin + last * kChunk; token >= scan.begin; token -= kChunk) {
    const int64_t chunk = a.chunk_number(scan, time, token);
    const auto tiles = static_cast<uint64_t>(a.chunk_tiles[chunk]);
    scales.mark_begins(a.segments, scan, time, token);
    __syncthreads();  // where segments begin is there
    const int rows = scan.rows(token);
    ChunkSegment segment{rows, rows, false};
    TileRows tile{warp, lane, rows, rows};
    while (tile.begin > 0) {
      if (tile.begin == segment.begin) {
        segment = scales.segment_to(tile.begin);
        begin_sequences<M>(copies, shared, a, scan, token, segment);
      }
      step_back(tile, tiles);
      // A tile leaves nothing of these to the one before it in the segment.
      const uint32_t logit_counts = begin_rows<kSlots>(
          copies, shared.weights, segment, {a.logits, a.key_mask, scan.row, token, scan.head, 0});
      begin_rows<kSlots>(copies, shared.to_keys, segment,
                         {a.kept_dreads, nullptr, scan.row, token, scan.head, 0});
      begin_rows<kSlots>(copies, shared.to_values, segment,
                         {a.kept_probabilities, nullptr, scan.row, token, scan.head, 0});
      copies.commit();
      if (thread < kChunk) {
        const bool inside = tile.begin <= thread && thread < tile.end;
        const int64_t at = (scan.row * time + token + thread) * heads + scan.head;
        shared.shifts[thread] = inside ? a.shifts[at] - a.key_offsets.at(at) : 0.0f;
        shared.whole_means[thread] = inside ? a.means[at] : 0.0f;
        shared.means[thread] = inside ? a.means[at] - a.value_offsets.at(at) : 0.0f;
        shared.entropies[thread] = inside ? a.entropies[at] : 0.0f;
      }
      copies.wait<0>();
      recompute_weights(scales, shared.weights, logit_counts, tile, segment, tiles,
                        a.chunk_normalizers + chunk * slots, slots);
      if (tile.has_any()) {
        SlotRows normalizers;
        sum_weights(shared.weights, scales, tile, normalizers);
        pass_reads(shared, tile, a.reading.scale, a.dropout.row.keep, normalizers);
      }
      __syncthreads();  // so are totals, X and Y
      keys.scale(inverse);
      keys.publish_rest(shared.keys);
      values.scale(inverse);
      values.publish_rest(shared.values);
      if (thread < kSlots) shared.carried[thread] *= inverse(thread);
      __syncthreads();  // so are the rests of later tokens' terms, which logits cannot do without
      SlotRows dlogits;
      if (tile.has_any()) {
        spread_slots(shared.carried, lane, dlogits);
        add_slots(a.other_dlogits, tile, scan.row * time + token, heads, scan.head, slots, dlogits);
        add_memory<M>(shared.k, shared.keys, tile, dlogits);
        add_memory<M>(shared.v, shared.values, tile, dlogits);
      }
      __syncthreads();  // nobody reads the rests any more
      keys.publish(shared.keys);
      values.publish(shared.values);
      __syncthreads();  // later tokens' terms are there; a warp alone reads its weights from now
                        // on

      if (tile.has_any()) {
        LeftFragment weights[kSlots / 16];
        load_weights(shared.weights, tile, weights);
        logit_gradients(shared, tile, dlogits);
        store_tile_rows<kSlots>(dlogits.parts, shared.weights, kSlotStride, tile,
                                {a.dlogits, a.key_mask, scan.row, token, scan.head, 0});
        // A warp alone reads its keys and values of the tile.
        ResultFragment sums[M / 8];
        gather_readers<M>(weights, shared.to_values, shared.d_o, shared.values, tile, sums);
        const TilePlace<kernel_bf16> dv{a.dv, a.key_mask, scan.row, token, scan.head, 0};
        if (a.adds) add_stored_rows<M>(dv, tile, {1, 1}, sums);
        store_tile_rows<M>(sums, shared.v, M + kPadding, tile, dv);
        gather_readers<M>(weights, shared.to_keys, shared.q, shared.keys, tile, sums);
        const TilePlace<kernel_bf16> dk{a.dk, a.key_mask, scan.row, token, scan.head, 0};
        if (a.adds) add_stored_rows<M>(dk, tile, {1, 1}, sums);
        store_tile_rows<M>(sums, shared.k, M + kPadding, tile, dk);
      }
      keys.add(shared.to_keys, shared.q, tile);
      keys.scale(start);
      values.add(shared.to_values, shared.d_o, tile);
      values.scale(start);
      __syncthreads();  // nobody reads the tile any more
      if (thread < kSlots) carry_sums(shared.carried, shared.sums, scales, tile);
      if (segment.fresh && tile.begin == segment.begin) {
        keys.clear();
        values.clear();
        if (thread < kSlots) shared.carried[thread] = 0;
      }
    }
  }
  keys.store(a.dkeys_in, place, slots, 0, static_cast<int>(a.k.K));
  values.store(a.dvalues_in, place, slots, 0, static_cast<int>(a.v.K));
  if (thread < slots) {
    const int64_t other = int64_t{blockIdx.x} * slots + thread;
    a.dsums[place + thread] =
        shared.carried[thread] + (a.other_sums != nullptr ? a.other_sums[other] : 0.0f);
  }
}

template <int M>
void run(const BackwardArguments& arguments) {
  launch({"slot_attention_fast_keys", blocks_for(arguments.scans * arguments.q.H, 1), kTileThreads,
          shared_bytes<Layout<M>>()},
         slot_attention_fast_keys<M>, arguments);
}

}  // namespace

void run_keys(const BackwardArguments& arguments) {
  const int64_t width = std::max(arguments.k.K, arguments.v.K);
  if (width <= 16) return run<16>(arguments);
  if (width <= 32) return run<32>(arguments);
  return run<64>(arguments);
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
