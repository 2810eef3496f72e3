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

// Scans the chunks of a block and leaves what its first token carries. load, leave and pass as in
// open_tile(); by warps that have rows of a tile add_logits(token, tile, dlogits) is called after
// the carried state, and leave_logits(token, tile, dlogits), after which weights are not read.
template <typename Load, typename Leave, typename Pass, typename AddLogits, typename LeaveLogits,
          typename... Sides>
__device__ __forceinline__ void scan_back(const Backward& a, const BackwardWork& work,
                                          const Common& shared, const Load& load,
                                          const Leave& leave, const Pass& pass,
                                          const AddLogits& add_logits,
                                          const LeaveLogits& leave_logits, Sides&... sides) {
  const SlotScales& scales = shared.scales;
  const Scan& scan = *shared.scan;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t time = a.time();
  (sides.load(a, place_after(a)), ...);
  if (thread < kSlots) shared.passed_on[thread] = 1;
  AsyncCopies copies;
  const auto begin_chunk = [&](int token) {
    const ChunkSegment all{0, scan.rows(token), false};  // nobody reads logits of other documents
    const uint32_t counts = begin_logits(copies, shared, a, work, token, all);
    copies.commit();
    return counts;
  };
  const int last = (scan.end - scan.begin + kChunk - 1) / kChunk - 1;
  const int last_chunk = scan.begin + last * kChunk;
  uint32_t logit_counts = last >= 0 ? begin_chunk(last_chunk) : 0;
  for (int token = last_chunk; token >= scan.begin; token -= kChunk) {
    const auto tiles =
        static_cast<uint64_t>(work.chunk_tiles[work.chunk_number(scan, time, token)]);
    if (token == last_chunk || a.segments != nullptr) {
      scales.mark_begins(a.segments, scan, time, token);
      __syncthreads();  // where segments begin is there
    }
    const int rows = scan.rows(token);
    ChunkSegment segment{rows, rows, false};
    TileRows tile{warp, lane, rows, rows};
    while (tile.begin > 0) {
      const bool opens = tile.begin == segment.begin;
      if (opens) segment = scales.segment_to(tile.begin);
      step_back(tile, tiles);
      const auto begin_tokens = [&] {
        if (opens) (sides.begin_sequences(copies, a, scan, token, segment), ...);
      };
      open_tile(copies, shared, a, work, token, segment, tiles, tile, logit_counts, begin_tokens,
                load, leave, pass, sides...);
      __syncthreads();  // totals, X and Y are there
      (sides.publish_rest(shared), ...);
      if (thread < kSlots) shared.carried[thread] *= scales.inverse_total(thread);
      copies.wait<0>();
      // So are rows of tokens, and the rests of later tokens' terms, which logits cannot do
      // without.
      __syncthreads();
      SlotRows dlogits;
      if (tile.has_any()) {
        spread_slots(shared.carried, lane, dlogits);
        add_logits(token, tile, dlogits);
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
      __syncwarp();  // nobody reads the warp's weights any more
      const int next = tile.begin > 0 ? token : token - kChunk;
      if (next >= scan.begin) logit_counts = begin_chunk(next);
      (sides.add_readers(tile), ...);
      __syncthreads();  // nobody reads the tile any more
      carry_sums(shared, tile);
      if (segment.fresh && tile.begin == segment.begin) {
        (sides.memory.clear(), ...);
        if (thread < kSlots) shared.carried[thread] = 0;
      }
    }
  }
  if (blockIdx.y > 0) return;
  __syncthreads();  // what is still to be multiplied is there
  (sides.finish(shared), ...);
  (sides.store(a, a.reading.place(blockIdx.x)), ...);
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

  const auto load = [&](int64_t at, bool inside) { return TokenValues::load(work, at, inside); };
  const auto leave = [&](int row, const TokenValues& values) { values.leave(shared, row); };
  const auto pass = [&](const TileRows& tile, const SlotRows& normalizers) {
    pass_whole(shared, a, tile, normalizers);
  };
  const auto add_logits = [&](int token, const TileRows& tile, SlotRows& dlogits) {
    add_slots(work.other_dlogits, tile, scan.row * time + token, heads, scan.head, slots, dlogits);
  };
  const auto leave_logits = [&](int token, const TileRows& tile, SlotRows& dlogits) {
    finish_logits(shared, tile, dlogits);
    store_tile_rows<kSlots>(dlogits.parts, shared.weights, kSlotStride, tile,
                            {a.dlogits, a.key_mask, scan.row, token, scan.head, 0});
  };
  Side<M, false> keys{shared.keys, 0, {}};
  Side<M, true> values{shared.values, 0, {}};
  scan_back(a, work, shared, load, leave, pass, add_logits, leave_logits, keys, values);
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

  const auto load = [&](int64_t at, bool inside) { return inside ? part.offsets[at] : 0.0f; };
  const auto leave = [&](int row, float offset) { shared.side.offsets[row] = offset; };
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
      a, work, shared, load, leave, pass, [](int, const TileRows&, SlotRows&) {}, leave_logits,
      side);
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
