// The gradients of keys, values, logits and the carried memory, backward in time; see
// fast_backward.h.
#include "attention/primitives/slot_attention/cuda/fast_keys.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {
namespace {

using namespace key_scans;

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

// The number of the first slot of the gradients that the block's split begins with.
__device__ __forceinline__ int64_t place_after(const Backward& a) {
  return a.reading.place(int64_t{blockIdx.y} * gridDim.x + blockIdx.x);
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
  const int64_t time = a.time();
  (sides.load(a, place_after(a)), ...);
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
  if (blockIdx.y == 0) (sides.store(a, a.reading.place(blockIdx.x)), ...);
}

template <int M>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_keys(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work) {
  SharedArena arena;
  const Layout<M> shared(arena);
  const int thread = static_cast<int>(threadIdx.x);
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = a.time();
  const Scan& scan = begin_scan(shared.scan, a, blockIdx.x);
  if (thread < kSlots) {
    shared.carried[thread] = thread < slots ? work.dsums_after[place_after(a) + thread] : 0.0f;
  }

  const auto load = [&](int row, int64_t at, bool inside) {
    load_token(shared, work, row, at, inside);
  };
  const auto pass = [&](const TileRows& tile, const SlotRows& normalizers) {
    pass_whole(shared, a, tile, normalizers);
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
  if (thread < slots && blockIdx.y == 0) {
    const int64_t other = int64_t{blockIdx.x} * slots + thread;
    a.dsums[a.reading.place(blockIdx.x) + thread] =
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
  const Scan& scan = begin_scan(shared.scan, a, blockIdx.x);
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
  if (thread >= slots || blockIdx.y > 0) return;
  float* sum = part.sums + int64_t{blockIdx.x} * slots + thread;
  *sum = (part.accumulate ? *sum : 0.0f) + shared.carried[thread];
}

template <bool of_values>
void run_part(const Backward& call, const BackwardWork& work, const WidePart& part) {
  launch({"slot_attention_fast_part_gradients", work.grid(call), kTileThreads,
          shared_bytes<PartLayout>()},
         slot_attention_fast_part_gradients<of_values>, call, work, part);
}

}  // namespace

void run_part_gradients(const Backward& call, const BackwardWork& work, bool values,
                        const WidePart& part) {
  return values ? run_part<true>(call, work, part) : run_part<false>(call, work, part);
}

void run_keys(const Backward& call, const BackwardWork& work) {
  if (call.given.are) return run_given_keys(call, work);
  with_width(call, [&](auto width) {
    constexpr int M = decltype(width)::value;
    launch({"slot_attention_fast_keys", work.grid(call), kTileThreads, shared_bytes<Layout<M>>()},
           slot_attention_fast_keys<M>, call, work);
  });
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
