// The scans backward in time of given weights: gradients of keys, values, weights and the carried
// memory, and what splits add to the last. The terms are those of fast_backward.h, with divisors d
// in place of c, w = 1 in logits' gradients and GK and GV of sums, which nothing scales:
//
//   da_jl = sum_{t >= j} (X_tl q_t . k_j + Y_tl do_t . v_j - (dr_tl r_tl + p_tl d_tl u_tl) / c_tl)
//
// of which the last term is that of means whose divisor is c, and 0 where it is not. Where nobody
// reads, a memory's gradients are all that comes in; where nobody writes, all that goes out.
#include "attention/primitives/slot_attention/cuda/fast_given.h"
#include "attention/primitives/slot_attention/cuda/fast_keys.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {
namespace {

using namespace key_scans;

using GivenLayout = Layout<kPart>;
using KeySide = Side<kPart, false>;
using ValueSide = Side<kPart, true>;

// Of the block's split, the number of its first slot.
__device__ __forceinline__ int64_t place_of_split(const Backward& a) {
  return a.reading.place(int64_t{blockIdx.y} * gridDim.x + blockIdx.x);
}

// dr and p of a warp's tokens -> X and Y, 0 outside the tile; of means their surprises and sums
// beside them. `weights`: the sums of given weights.
__device__ __forceinline__ void pass_given(const GivenLayout& shared, const Backward& a,
                                           const TileRows& tile, const SlotRows& weights) {
  const int lane = tile.lane;
  const float scale = a.reading.scale, back = -1 / scale, keep = a.dropout.row.keep;
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
    float sums[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.warp * 16 + half * 8 + lane / 4;
      const int at = row * kSlotStride + slot_of(j, 0, lane);
      auto* x = reinterpret_cast<uint32_t*>(shared.keys.passed + at);
      auto* y = reinterpret_cast<uint32_t*>(shared.values.passed + at);
      const float dreads[2] = {low_of(*x), high_of(*x)}, ps[2] = {low_of(*y), high_of(*y)};
      const float mean = shared.whole_means[row];
      float xs[2], ys[2], dropped[2];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float divisor = a.given.divisor(weights.parts[j].values[2 * half + odd]);
        const float inverse = tile.has(half) && divisor > 0 ? reciprocal(divisor) : 0.0f;
        const float factor = ps[odd] < 0 ? 0.0f : keep;  // negative: dropped
        xs[odd] = dreads[odd] * (scale * inverse);
        ys[odd] = fabsf(ps[odd]) * inverse;
        dropped[odd] = mean * ys[odd] * (1 - factor);
        ys[odd] *= factor;
      }
      const uint32_t x_pair = pack(xs[0], xs[1]), y_pair = pack(ys[0], ys[1]);
      *x = x_pair;
      *y = y_pair;
      if (!a.given.means) continue;
      const float offset = shared.entropies[row] + 1;
      const float x_both[2] = {low_of(x_pair), high_of(x_pair)};
      const float y_both[2] = {low_of(y_pair), high_of(y_pair)};
      float surprises[2], common[2];
      bool floored[2];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        // What add_products() takes away. Reads by a floor get it back: they have no last term.
        common[odd] = x_both[odd] * shared.keys.offsets[row] + y_both[odd] * mean;
        floored[odd] = a.given.is_floor(weights.parts[j].values[2 * half + odd]);
        surprises[odd] = back * x_both[odd] * (fast_log(fabsf(ps[odd])) + offset) - dropped[odd];
        if (floored[odd]) surprises[odd] = common[odd];
      }
      const uint32_t pair = pack(surprises[0], surprises[1]);
      *reinterpret_cast<uint32_t*>(shared.surprises + at) = pair;
      if (!floored[0]) sums[0] += common[0] - low_of(pair);
      if (!floored[1]) sums[1] += common[1] - high_of(pair);
    }
    if (a.given.means) leave_sums(sums, j, tile, shared.sums);
  }
}

// For each thread: what its token and slot have in a tile of a chunk, before the barrier after
// which the tile is there.
__device__ __forceinline__ void load_tile(const GivenLayout& shared, const Backward& a,
                                          const BackwardWork& work, const Scan& scan, int token,
                                          int64_t chunk, const TileRows& tile, bool fresh) {
  const int thread = static_cast<int>(threadIdx.x), slots = a.reading.slots;
  if (thread < kChunk) {
    const int64_t at = (scan.row * a.time() + token + thread) * a.q.H + scan.head;
    load_token(shared, work, thread, at, tile.begin <= thread && thread < tile.end);
    // Nothing is taken away of sums, whose gradients are no small differences.
    if (!a.given.means) shared.keys.offsets[thread] = shared.values.offsets[thread] = 0;
  }
  if (thread >= kSlots) return;
  const bool written = thread < slots && !fresh;
  shared.scales.set_sum(thread, written ? work.chunk_normalizers[chunk * slots + thread] : 0.0);
}

// By warps that have rows of the tile.
__device__ __forceinline__ void pass_tile(const GivenLayout& shared, const Backward& a,
                                          const TileRows& tile) {
  if (!tile.has_any()) return;
  SlotRows sums;
  sum_weights(shared.weights, shared.scales, tile, sums, a.given.summed());
  pass_given(shared, a, tile, sums);
}

// From after a tile to before it, for threads 0 to 63.
__device__ __forceinline__ void carry_means(const GivenLayout& shared, const TileRows& tile) {
  const int slot = static_cast<int>(threadIdx.x);
  for (int warp = tile.first_square(); warp < tile.end_square(); ++warp) {
    shared.carried[slot] -= shared.sums[warp * kSlots + slot];
  }
}

// As Side::gather; `readers` are a tile of no squares where nobody reads.
template <typename AnySide>
__device__ __forceinline__ void gather_given(const AnySide& side,
                                             const LeftFragment (&weights)[kSlots / 16],
                                             const Writes& gradient, const Backward& a,
                                             const BackwardWork& work, const TileRows& readers,
                                             const TileRows& tile, const Scan& scan, int token) {
  ResultFragment sums[kPart / 8];
  gather_readers<kPart>(weights, side.tiles.passed, side.tiles.readers, side.tiles.memory, readers,
                        sums);
  const TilePlace<kernel_bf16> to{gradient, a.key_mask, scan.row, token, scan.head, 0};
  if (work.adds) add_stored_rows<kPart>(to, tile, {1, 1}, sums);
  store_tile_rows<kPart>(sums, side.tiles.own, kPart + kPadding, tile, to);
}

__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_given_keys(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work) {
  SharedArena arena;
  const GivenLayout shared(arena);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int slots = a.reading.slots;
  const bool reads = a.q.T > 0, writes = a.k.T > 0, means = a.given.means;
  const Scan& scan = begin_scan(shared.scan, a, blockIdx.x);
  if (thread < kSlots) {
    shared.carried[thread] = thread < slots ? work.dsums_after[place_of_split(a) + thread] : 0.0f;
  }
  KeySide keys{shared.keys, 0, {}};
  ValueSide values{shared.values, 0, {}};
  keys.load(a, place_of_split(a));
  values.load(a, place_of_split(a));
  AsyncCopies copies;
  const int last = (scan.end - scan.begin + kChunk - 1) / kChunk - 1;
  for (int token = scan.begin + last * kChunk; token >= scan.begin; token -= kChunk) {
    shared.scales.mark_begins(a.segments, scan, a.time(), token);
    __syncthreads();  // where segments begin is there
    const int rows = scan.rows(token);
    TileRows tile{warp, lane, rows, rows};
    while (tile.begin > 0) {
      const ChunkSegment segment = shared.scales.segment_to(tile.begin);
      tile.begin = segment.begin;
      tile.end = segment.end;
      if (writes) {
        begin_own<false>(copies, shared.keys, a, scan, token, segment, 0);
        begin_own<true>(copies, shared.values, a, scan, token, segment, 0);
      }
      begin_rows<kSlots>(copies, shared.weights, segment,
                         {a.logits, a.key_mask, scan.row, token, scan.head, 0});
      if (reads) {
        keys.begin_readers(copies, a, scan, token, segment);
        values.begin_readers(copies, a, scan, token, segment);
        keys.begin_passed(copies, work, scan, token, segment);
        values.begin_passed(copies, work, scan, token, segment);
        load_tile(shared, a, work, scan, token, work.chunk_number(scan, a.time(), token), tile,
                  segment.fresh);
      }
      copies.commit();
      copies.wait<0>();
      __syncthreads();  // the tile is there
      if (reads) pass_tile(shared, a, tile);
      SlotRows dlogits = {};
      if (means && writes) {  // whose gradients are small differences
        keys.memory.publish_rest(shared.keys.memory);
        values.memory.publish_rest(shared.values.memory);
        __syncthreads();  // so are the rests of later tokens' terms
        if (tile.has_any()) {
          spread_slots(shared.carried, lane, dlogits);
          keys.add_later(tile, dlogits);
          values.add_later(tile, dlogits);
        }
        __syncthreads();  // nobody reads the rests any more
      }
      keys.publish();
      values.publish();
      __syncthreads();  // later tokens' terms, X and Y are there; a warp alone reads its weights

      if (writes && tile.has_any()) {
        keys.add_later(tile, dlogits);
        values.add_later(tile, dlogits);
        TileRows readers = tile;
        if (reads) {
          add_products<kPart>(shared.keys.own, shared.keys.readers, shared.keys.offsets,
                              shared.keys.passed, tile, dlogits);
          add_products<kPart>(shared.values.own, shared.values.readers, shared.values.offsets,
                              shared.values.passed, tile, dlogits);
        } else {
          readers.end = 0;
        }
        LeftFragment weights[kSlots / 16];
        load_weights(shared.weights, tile, weights);
        if (means && reads) {
#pragma unroll 1  // registers
          for (int square = warp; square < tile.end_square(); ++square) {
            add_rows<kSlots>(ones_of<true>(square == warp, lane),
                             shared.surprises + square * 16 * kSlotStride, kSlotStride, lane,
                             dlogits.parts);
          }
        }
        store_tile_rows<kSlots>(dlogits.parts, shared.weights, kSlotStride, tile,
                                {a.dlogits, a.key_mask, scan.row, token, scan.head, 0});
        gather_given(keys, weights, a.dk, a, work, readers, tile, scan, token);
        gather_given(values, weights, a.dv, a, work, readers, tile, scan, token);
      }
      if (reads) {
        keys.memory.add(shared.keys.passed, shared.keys.readers, tile, {1, 1});
        values.memory.add(shared.values.passed, shared.values.readers, tile, {1, 1});
      }
      __syncthreads();  // nobody reads the tile any more
      if (reads && means && thread < kSlots) carry_means(shared, tile);
      if (segment.fresh) {
        keys.memory.clear();
        values.memory.clear();
        if (thread < kSlots) shared.carried[thread] = 0;
      }
    }
  }
  if (blockIdx.y > 0) return;
  const int64_t place = a.reading.place(blockIdx.x);
  keys.store(a, place);
  values.store(a, place);
  if (thread < slots) a.dsums[place + thread] = shared.carried[thread];
}

// As slot_attention_fast_key_sums.
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_given_key_sums(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work, SplitSums to) {
  SharedArena arena;
  const GivenLayout shared(arena);
  const int thread = static_cast<int>(threadIdx.x), slots = a.reading.slots;
  const bool is_last = blockIdx.y + 1 == gridDim.y;
  const int64_t after = a.reading.place(blockIdx.x);
  const Scan& scan = begin_scan(shared.scan, a, blockIdx.x, 1);
  if (thread < kSlots) {
    shared.carried[thread] = is_last && thread < slots ? a.dsums[after + thread] : 0.0f;
  }
  KeySide keys{shared.keys, 0, {}};
  ValueSide values{shared.values, 0, {}};
  keys.load(a, after, is_last);
  values.load(a, after, is_last);
  AsyncCopies copies;
  const int last = (scan.end - scan.begin + kChunk - 1) / kChunk - 1;
  for (int token = scan.begin + last * kChunk; a.q.T > 0 && token >= scan.begin; token -= kChunk) {
    const ChunkSegment whole{0, scan.rows(token), false};  // documents are not cut
    const TileRows tile{thread / 32, thread % 32, 0, whole.end};
    keys.begin_readers(copies, a, scan, token, whole);
    values.begin_readers(copies, a, scan, token, whole);
    begin_rows<kSlots>(copies, shared.weights, whole,
                       {a.logits, a.key_mask, scan.row, token, scan.head, 0});
    keys.begin_passed(copies, work, scan, token, whole);
    values.begin_passed(copies, work, scan, token, whole);
    copies.commit();
    load_tile(shared, a, work, scan, token, work.chunk_number(scan, a.time(), token), tile, false);
    copies.wait<0>();
    __syncthreads();  // the tile is there
    pass_tile(shared, a, tile);
    __syncthreads();  // so are X and Y
    keys.memory.add(shared.keys.passed, shared.keys.readers, tile, {1, 1});
    values.memory.add(shared.values.passed, shared.values.readers, tile, {1, 1});
    if (a.given.means && thread < kSlots) carry_means(shared, tile);
    __syncthreads();  // nobody reads the tile any more
  }
  keys.store(to.keys, a, place_of_split(a));
  values.store(to.values, a, place_of_split(a));
  if (thread < slots) to.sums[place_of_split(a) + thread] = shared.carried[thread];
}

}  // namespace

void run_given_keys(const Backward& call, const BackwardWork& work) {
  launch({"slot_attention_given_keys", work.grid(call), kTileThreads, shared_bytes<GivenLayout>()},
         slot_attention_given_keys, call, work);
}

void run_given_key_sums(const Backward& call, const BackwardWork& work, const SplitSums& to) {
  dim3 grid = work.grid(call);
  grid.y -= 1;  // nobody continues the first split
  launch({"slot_attention_given_key_sums", grid, kTileThreads, shared_bytes<GivenLayout>()},
         slot_attention_given_key_sums, call, work, to);
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
