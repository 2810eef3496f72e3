// The gradients of keys, values, logits and the carried memory, backward in time; see
// fast_backward.h.
#include "attention/primitives/slot_attention/cuda/fast_backward.h"
#include "attention/primitives/slot_attention/cuda/fast_sums.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {
namespace {

template <int M>
struct GradientTiles : SideTiles<M> {
  __host__ __device__ explicit GradientTiles(SharedArena& arena)
      : SideTiles<M>(arena),
        passed(arena.take<kernel_bf16>(size_t{kChunk} * kSlotStride)),
        offsets(arena.take<float>(kChunk)) {}
  kernel_bf16* passed;  // dr or p, then X or Y
  float* offsets;       // r' / scale or m, of this part
};

// What a scan has, whichever its sides.
struct Common {
  __host__ __device__ explicit Common(SharedArena& arena)
      : weights(arena.take<kernel_bf16>(size_t{kChunk} * kSlotStride)),
        scales(arena),
        carried(arena.take<float>(kSlots)),
        sums(arena.take<float>(size_t{kChunk / 16} * kSlots)),
        scan(arena.take<Scan>(1)) {}
  kernel_bf16* weights;  // logits, then w
  SlotScales scales;
  // Of dr r + p d u over c, or of a part X or Y times offsets: minus the sum of later tokens, and
  // the sums over each warp's tokens.
  float *carried, *sums;
  Scan* scan;
};

template <int M>
struct Layout : Common {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : Common(arena),
        keys(arena),
        values(arena),
        surprises(arena.take<kernel_bf16>(size_t{kChunk} * kSlotStride)),
        entropies(arena.take<float>(kChunk)),
        whole_means(arena.take<float>(kChunk)) {}
  GradientTiles<M> keys, values;
  kernel_bf16* surprises;  // -(dr (log p + h + 1) + p m (1 - d)) / c
  float* entropies;        // h
  float* whole_means;      // m, of all parts
};

struct PartLayout : Common {
  __host__ __device__ explicit PartLayout(SharedArena& arena) : Common(arena), side(arena) {}
  GradientTiles<kPart> side;
};

// A side in a scan backward in time: columns from `first` on of GK or GV.
template <int M, bool of_values>
struct Side {
  const GradientTiles<M>& tiles;
  int first;
  MemoryTile<M> memory;

  __device__ __forceinline__ int width(const Backward& a) const {
    return static_cast<int>(either<of_values>(a.k, a.v).K);
  }
  __device__ __forceinline__ void load(const Backward& a, int64_t place) {
    memory.load(either<of_values>(a.dkeys_out, a.dvalues_out), place, a.reading.slots, first,
                width(a));
  }
  __device__ __forceinline__ void store(const Backward& a, int64_t place) const {
    memory.store(either<of_values>(a.dkeys_in, a.dvalues_in), place, a.reading.slots, first,
                 width(a));
  }
  __device__ __forceinline__ void begin_sequences(AsyncCopies& copies, const Backward& a,
                                                  const Scan& scan, int token,
                                                  const ChunkSegment& segment) const {
    begin_side<of_values>(copies, tiles, a, scan, token, segment, first);
  }
  // A tile leaves nothing of these to the one before it in the segment.
  __device__ __forceinline__ void begin_passed(AsyncCopies& copies, const BackwardWork& work,
                                               const Scan& scan, int token,
                                               const ChunkSegment& segment) const {
    begin_rows<kSlots>(copies, tiles.passed, segment,
                       {either<of_values>(work.kept_dreads, work.kept_probabilities), nullptr,
                        scan.row, token, scan.head, 0});
  }
  __device__ __forceinline__ void publish_rest(const SlotScales& scales) {
    memory.scale([&](int slot) { return scales.inverse_total(slot); });
    memory.publish_rest(tiles.memory);
  }
  __device__ __forceinline__ void publish() const { memory.publish(tiles.memory); }
  // Adds to the gradients of a warp's logits, before weights, what the memory does, and readers.
  __device__ __forceinline__ void add_later(const TileRows& tile, SlotRows& dlogits) const {
    add_memory<M>(tiles.own, tiles.memory, tile, dlogits);
  }
  __device__ __forceinline__ void add_all(const TileRows& tile, SlotRows& dlogits) const {
    add_later(tile, dlogits);
    add_products<M>(tiles.own, tiles.readers, tiles.offsets, tiles.passed, tile, dlogits);
  }
  // dk or dv of a warp's tokens, of which it alone reads the tile's keys or values.
  __device__ __forceinline__ void gather(const LeftFragment (&weights)[kSlots / 16],
                                         const Backward& a, const BackwardWork& work,
                                         const TileRows& tile, int64_t row, int token,
                                         int head) const {
    ResultFragment sums[M / 8];
    gather_readers<M>(weights, tiles.passed, tiles.readers, tiles.memory, tile, sums);
    const TilePlace<kernel_bf16> to{
        either<of_values>(a.dk, a.dv), a.key_mask, row, token, head, first};
    if (work.adds) add_stored_rows<M>(to, tile, {1, 1}, sums);
    store_tile_rows<M>(sums, tiles.own, M + kPadding, tile, to);
  }
  __device__ __forceinline__ void add_readers(const SlotScales& scales, const TileRows& tile) {
    memory.add(tiles.passed, tiles.readers, tile, {1, 1});
    memory.scale([&](int slot) { return scales.start[slot]; });
  }
};

// dr and p of a warp's tokens -> X and Y, 0 outside the tile; their surprises and sums beside them.
// Where it `drops`, dropped elements have a negative p and the others are multiplied by `keep`.
template <int M, bool drops>
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
      auto* x = reinterpret_cast<uint32_t*>(shared.keys.passed + at);
      auto* y = reinterpret_cast<uint32_t*>(shared.values.passed + at);
      const float offset = shared.entropies[row] + 1;
      const float dreads[2] = {low_of(*x), high_of(*x)}, ps[2] = {low_of(*y), high_of(*y)};
      float xs[2], ys[2], surprises[2], dropped[2] = {};
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float normalizer = normalizers.parts[j].values[2 * half + odd];
        const bool counts = tile.has(half) && normalizer > 0;
        const float inverse = counts ? reciprocal(normalizer) : 0.0f;
        xs[odd] = dreads[odd] * (scale * inverse);
        ys[odd] = ps[odd] * inverse;
        // Where p is 0, so is dr.
        surprises[odd] = fast_log(fabsf(ps[odd])) + offset;
        if constexpr (drops) {
          const float factor = ps[odd] < 0 ? 0.0f : keep;
          dropped[odd] = shared.whole_means[row] * fabsf(ys[odd]) * (1 - factor);
          ys[odd] *= factor;
        }
      }
      const uint32_t x_pair = pack(xs[0], xs[1]), y_pair = pack(ys[0], ys[1]);
      // From X as rounded, so that the common part of all keys or values cancels.
      const uint32_t pair = pack(back * low_of(x_pair) * surprises[0] - dropped[0],
                                 back * high_of(x_pair) * surprises[1] - dropped[1]);
      *x = x_pair;
      *y = y_pair;
      *reinterpret_cast<uint32_t*>(shared.surprises + at) = pair;
      const float shift = shared.keys.offsets[row], mean = shared.values.offsets[row];
      sums[0] += low_of(x_pair) * shift + low_of(y_pair) * mean - low_of(pair);
      sums[1] += high_of(x_pair) * shift + high_of(y_pair) * mean - high_of(pair);
    }
    leave_sums(sums, j, tile, shared.sums);
  }
}

// The gradients of a warp's logits, from those before weights and surprises.
template <int M>
__device__ __forceinline__ void finish_logits(const Layout<M>& shared, const TileRows& tile,
                                              SlotRows& gradients) {
  const int warp = tile.warp, lane = tile.lane;
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

// dr or p of a warp's tokens -> X or Y of a part, 0 outside the tile; their sums beside them.
template <bool of_values>
__device__ __forceinline__ void pass_part(const PartLayout& shared, float factor,
                                          const TileRows& tile, const SlotRows& normalizers) {
  const int lane = tile.lane;
  const auto kept = [](float x) { return of_values && x < 0 ? 0.0f : x; };
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
    float sums[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.warp * 16 + half * 8 + lane / 4;
      auto* x =
          reinterpret_cast<uint32_t*>(shared.side.passed + row * kSlotStride + slot_of(j, 0, lane));
      float inverses[2];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float normalizer = normalizers.parts[j].values[2 * half + odd];
        inverses[odd] = tile.has(half) && normalizer > 0 ? factor * reciprocal(normalizer) : 0.0f;
      }
      *x = pack(kept(low_of(*x)) * inverses[0], kept(high_of(*x)) * inverses[1]);
      sums[0] += low_of(*x) * shared.side.offsets[row];
      sums[1] += high_of(*x) * shared.side.offsets[row];
    }
    leave_sums(sums, j, tile, shared.sums);
  }
}

// Scans the chunks of a block and leaves what its first token carries. Calls load(row, token,
// inside) for the values of each token of a chunk, which count inside the tile; and by warps that
// have rows of a tile pass(tile, normalizers), for X and Y, begin_logits(token, tile, dlogits)
// after the carried state, and leave_logits(token, tile, dlogits), after which weights are not
// read.
template <typename Load, typename Pass, typename BeginLogits, typename LeaveLogits,
          typename... Sides>
__device__ __forceinline__ void scan_back(const Backward& a, const BackwardWork& work,
                                          const Common& shared, const Load& load, const Pass& pass,
                                          const BeginLogits& begin_logits,
                                          const LeaveLogits& leave_logits, Sides&... sides) {
  const SlotScales& scales = shared.scales;
  const Scan& scan = *shared.scan;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = a.time(), place = a.reading.place(blockIdx.x);
  (sides.load(a, place), ...);
  AsyncCopies copies;
  const int last = (scan.end - scan.begin + kChunk - 1) / kChunk - 1;
  for (int token = scan.begin + last * kChunk; token >= scan.begin; token -= kChunk) {
    const int64_t chunk = work.chunk_number(scan, time, token);
    const auto tiles = static_cast<uint64_t>(work.chunk_tiles[chunk]);
    scales.mark_begins(a.segments, scan, time, token);
    __syncthreads();  // where segments begin is there
    const int rows = scan.rows(token);
    ChunkSegment segment{rows, rows, false};
    TileRows tile{warp, lane, rows, rows};
    while (tile.begin > 0) {
      if (tile.begin == segment.begin) {
        segment = scales.segment_to(tile.begin);
        (sides.begin_sequences(copies, a, scan, token, segment), ...);
      }
      step_back(tile, tiles);
      const uint32_t logit_counts = begin_rows<kSlots>(
          copies, shared.weights, segment, {a.logits, a.key_mask, scan.row, token, scan.head, 0});
      (sides.begin_passed(copies, work, scan, token, segment), ...);
      copies.commit();
      if (thread < kChunk) {
        load(thread, (scan.row * time + token + thread) * heads + scan.head,
             tile.begin <= thread && thread < tile.end);
      }
      copies.wait<0>();
      recompute_weights(scales, shared.weights, logit_counts, tile, segment, tiles,
                        work.chunk_normalizers + chunk * slots, slots);
      if (tile.has_any()) {
        SlotRows normalizers;
        sum_weights(shared.weights, scales, tile, normalizers);
        pass(tile, normalizers);
      }
      __syncthreads();  // so are totals, X and Y
      (sides.publish_rest(scales), ...);
      if (thread < kSlots) shared.carried[thread] *= scales.inverse_total(thread);
      __syncthreads();  // so are the rests of later tokens' terms, which logits cannot do without
      SlotRows dlogits;
      if (tile.has_any()) {
        spread_slots(shared.carried, lane, dlogits);
        begin_logits(token, tile, dlogits);
        (sides.add_later(tile, dlogits), ...);
      }
      __syncthreads();  // nobody reads the rests any more
      (sides.publish(), ...);
      __syncthreads();  // later tokens' terms are there; a warp alone reads its weights from now on

      if (tile.has_any()) {
        (sides.add_all(tile, dlogits), ...);
        LeftFragment weights[kSlots / 16];
        load_weights(shared.weights, tile, weights);
        leave_logits(token, tile, dlogits);
        (sides.gather(weights, a, work, tile, scan.row, token, scan.head), ...);
      }
      (sides.add_readers(scales, tile), ...);
      __syncthreads();  // nobody reads the tile any more
      if (thread < kSlots) carry_sums(shared.carried, shared.sums, scales, tile);
      if (segment.fresh && tile.begin == segment.begin) {
        (sides.memory.clear(), ...);
        if (thread < kSlots) shared.carried[thread] = 0;
      }
    }
  }
  (sides.store(a, place), ...);
}

template <int M>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_keys(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work) {
  SharedArena arena;
  const Layout<M> shared(arena);
  const int thread = static_cast<int>(threadIdx.x);
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = a.time(), place = a.reading.place(blockIdx.x);
  const Scan& scan = begin_scan(shared.scan, a.spans.table, blockIdx.x, heads, time);
  if (thread < kSlots) shared.carried[thread] = thread < slots ? a.dsums[place + thread] : 0.0f;

  const auto load = [&](int row, int64_t at, bool inside) {
    shared.keys.offsets[row] = inside ? work.shifts[at] - work.key_offsets.at(at) : 0.0f;
    shared.whole_means[row] = inside ? work.means[at] : 0.0f;
    shared.values.offsets[row] = inside ? work.means[at] - work.value_offsets.at(at) : 0.0f;
    // Finite where no slot is in use: all p are 0.
    shared.entropies[row] = inside ? fmaxf(work.entropies[at], -1e30f) : 0.0f;
  };
  const auto pass = [&](const TileRows& tile, const SlotRows& normalizers) {
    const float scale = a.reading.scale, keep = a.dropout.row.keep;
    if (a.dropout.drops) return pass_reads<M, true>(shared, tile, scale, keep, normalizers);
    pass_reads<M, false>(shared, tile, scale, keep, normalizers);
  };
  const auto begin_logits = [&](int token, const TileRows& tile, SlotRows& dlogits) {
    add_slots(work.other_dlogits, tile, scan.row * time + token, heads, scan.head, slots, dlogits);
  };
  const auto leave_logits = [&](int token, const TileRows& tile, SlotRows& dlogits) {
    finish_logits(shared, tile, dlogits);
    store_tile_rows<kSlots>(dlogits.parts, shared.weights, kSlotStride, tile,
                            {a.dlogits, a.key_mask, scan.row, token, scan.head, 0});
  };
  Side<M, false> keys{shared.keys, 0, {}};
  Side<M, true> values{shared.values, 0, {}};
  scan_back(a, work, shared, load, pass, begin_logits, leave_logits, keys, values);
  if (thread < slots) {
    const int64_t other = int64_t{blockIdx.x} * slots + thread;
    a.dsums[place + thread] =
        shared.carried[thread] + (work.other_sums != nullptr ? work.other_sums[other] : 0.0f);
  }
}

template <bool of_values>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_part_gradients(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work,
    const __grid_constant__ WidePart part) {
  SharedArena arena;
  const PartLayout shared(arena);
  const int thread = static_cast<int>(threadIdx.x);
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = a.time();
  const Scan& scan = begin_scan(shared.scan, a.spans.table, blockIdx.x, heads, time);
  if (thread < kSlots) shared.carried[thread] = 0;

  const auto load = [&](int row, int64_t at, bool inside) {
    shared.side.offsets[row] = inside ? part.offsets[at] : 0.0f;
  };
  const auto pass = [&](const TileRows& tile, const SlotRows& normalizers) {
    pass_part<of_values>(shared, either<of_values>(a.reading.scale, a.dropout.row.keep), tile,
                         normalizers);
  };
  const auto leave_logits = [&](int token, const TileRows& tile, const SlotRows& dlogits) {
    leave_slots(dlogits, part.accumulate, tile, scan.row * time + token, heads, scan.head, slots,
                part.products);
  };
  Side<kPart, of_values> side{shared.side, part.first, {}};
  scan_back(
      a, work, shared, load, pass, [](int, const TileRows&, SlotRows&) {}, leave_logits, side);
  if (thread >= slots) return;
  float* sum = part.sums + int64_t{blockIdx.x} * slots + thread;
  *sum = (part.accumulate ? *sum : 0.0f) + shared.carried[thread];
}

template <bool of_values>
void run_part(const Backward& call, const BackwardWork& work, const WidePart& part) {
  launch({"slot_attention_fast_part_gradients", blocks_for(call.memories() * call.q.H, 1),
          kTileThreads, shared_bytes<PartLayout>()},
         slot_attention_fast_part_gradients<of_values>, call, work, part);
}

}  // namespace

void run_part_gradients(const Backward& call, const BackwardWork& work, bool values,
                        const WidePart& part) {
  return values ? run_part<true>(call, work, part) : run_part<false>(call, work, part);
}

void run_keys(const Backward& call, const BackwardWork& work) {
  with_width(call, [&](auto width) {
    constexpr int M = decltype(width)::value;
    launch({"slot_attention_fast_keys", blocks_for(call.memories() * call.q.H, 1), kTileThreads,
            shared_bytes<Layout<M>>()},
           slot_attention_fast_keys<M>, call, work);
  });
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
