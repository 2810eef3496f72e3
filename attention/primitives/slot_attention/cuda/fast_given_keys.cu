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

// dr and p of a warp's tokens -> X and Y, 0 outside the tile; of means their surprises and
// sums beside them. `weights`: the sums of given weights.
__device__ __forceinline__ void pass_given(const GivenLayout& shared, const Backward& a,
                                           const TileRows& tile, const SlotRows& weights) {
  const float scale = a.reading.scale, back = -reciprocal(scale), keep = a.dropout.row.keep;
  const OfTokens entropies(shared.entropies, tile), shifts(shared.keys.offsets, tile),
      means(shared.whole_means, tile);
  pass_pairs(shared, tile, weights, a.given.means, [&](const PassedPair& at, float* sums) {
    const float mean = means[at.half];
    float xs[2], ys[2], dropped[2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float divisor = a.given.divisor(at.normalizers[odd]);
      const float inverse = at.counts && divisor > 0 ? reciprocal(divisor) : 0.0f;
      const float factor = at.ps[odd] < 0 ? 0.0f : keep;  // negative: dropped
      xs[odd] = at.dreads[odd] * (scale * inverse);
      ys[odd] = fabsf(at.ps[odd]) * inverse;
      dropped[odd] = mean * ys[odd] * (1 - factor);
      ys[odd] *= factor;
    }
    const uint32_t x_pair = pack(xs[0], xs[1]), y_pair = pack(ys[0], ys[1]);
    *at.x = x_pair;
    *at.y = y_pair;
    if (!a.given.means) return;
    const float offset = entropies[at.half] + 1;
    const float x_both[2] = {low_of(x_pair), high_of(x_pair)};
    const float y_both[2] = {low_of(y_pair), high_of(y_pair)};
    float surprises[2], common[2];
    bool floored[2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      // What add_products() takes away. Reads by a floor get it back: they have no last term.
      common[odd] = x_both[odd] * shifts[at.half] + y_both[odd] * mean;
      floored[odd] = a.given.is_floor(at.normalizers[odd]);
      surprises[odd] = back * x_both[odd] * (fast_log(fabsf(at.ps[odd])) + offset) - dropped[odd];
      if (floored[odd]) surprises[odd] = common[odd];
    }
    const uint32_t pair = pack(surprises[0], surprises[1]);
    *at.surprise = pair;
    if (!floored[0]) sums[0] += common[0] - low_of(pair);
    if (!floored[1]) sums[1] += common[1] - high_of(pair);
  });
}

// Begins a tile, as open_tile() of exponentials: asks for dr and p, and by begin_tokens() for rows
// of tokens, waits for its weights and, where tokens are read, makes X and Y, before which a
// barrier is missing.
template <typename BeginTokens>
__device__ __forceinline__ void open_given(AsyncCopies& copies, const GivenLayout& shared,
                                           const Backward& a, const BackwardWork& work, int token,
                                           const ChunkSegment& segment, const TileRows& tile,
                                           const KeySide& keys, const ValueSide& values, bool reads,
                                           const BeginTokens& begin_tokens) {
  const Scan& scan = *shared.scan;
  const int thread = static_cast<int>(threadIdx.x), slots = a.reading.slots;
  if (reads) {
    keys.begin_passed(copies, work, scan, token, segment);
    values.begin_passed(copies, work, scan, token, segment);
  }
  copies.commit();
  begin_tokens();
  copies.commit();
  const int row = tile.warp * 16 + tile.lane;  // of 16 lanes
  const bool has_row = tile.lane < 16;
  TokenValues token_values =
      TokenValues::load(work, (scan.row * a.time() + token + row) * a.q.H + scan.head,
                        reads && has_row && tile.begin <= row && row < tile.end);
  // Nothing is taken away of sums, whose gradients are no small differences.
  if (!a.given.means) token_values.key_offset = token_values.value_offset = 0;
  copies.wait<2>();
  if (thread < kSlots / 2) {  // which copied them
#pragma unroll
    for (int slot = 2 * thread; slot < 2 * thread + 2; ++slot) {
      const bool written = reads && slot < slots && !segment.fresh;
      shared.scales.set_sum(slot, written ? shared.scales.log_normalizer[slot] : 0.0);
    }
  }
  __syncthreads();  // weights, and the sums before them, are there
  if (!reads || !tile.has_any()) return;
  SlotRows sums;
  sum_weights(shared.weights, shared.scales, tile, sums, a.given.summed());
  if (has_row) token_values.leave(shared, row);
  copies.wait<1>();
  __syncwarp();  // the warp's dr and p are there
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
  const int last_chunk = scan.begin + last * kChunk;
  for (int token = last_chunk; token >= scan.begin; token -= kChunk) {
    if (token == last_chunk || a.segments != nullptr) {
      shared.scales.mark_begins(a.segments, scan, a.time(), token);
      __syncthreads();  // where segments begin is there
    }
    const int rows = scan.rows(token);
    TileRows tile{warp, lane, rows, rows};
    while (tile.begin > 0) {
      const ChunkSegment segment = shared.scales.segment_to(tile.begin);
      tile.begin = segment.begin;
      tile.end = segment.end;
      // Weights of whole chunks are copied ahead, those of documents are not.
      if (token == last_chunk || a.segments != nullptr) {
        begin_logits(copies, shared, a, work, token, segment);
      }
      copies.commit();
      const auto begin_tokens = [&] {
        if (writes) {
          begin_own<false>(copies, shared.keys, a, scan, token, segment, 0);
          begin_own<true>(copies, shared.values, a, scan, token, segment, 0);
        }
        if (reads) {
          keys.begin_readers(copies, a, scan, token, segment);
          values.begin_readers(copies, a, scan, token, segment);
        }
      };
      open_given(copies, shared, a, work, token, segment, tile, keys, values, reads, begin_tokens);
      SlotRows dlogits = {};
      if (means && writes) {  // whose gradients are small differences
        keys.memory.publish_rest(shared.keys.memory);
        values.memory.publish_rest(shared.values.memory);
        copies.wait<0>();
        __syncthreads();  // so are rows of tokens, and the rests of later tokens' terms
        if (tile.has_any()) {
          spread_slots(shared.carried, lane, dlogits);
          keys.add_later(tile, dlogits);
          values.add_later(tile, dlogits);
        }
        __syncthreads();  // nobody reads the rests any more
      }
      if (writes) {
        keys.publish();
        values.publish();
      }
      copies.wait<0>();
      // Rows of tokens, later tokens' terms, X and Y are there; a warp alone reads its weights.
      __syncthreads();

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
      __syncwarp();  // nobody reads the warp's weights any more
      const int next = token - kChunk;
      if (a.segments == nullptr && next >= scan.begin) {
        begin_logits(copies, shared, a, work, next, {0, scan.rows(next), false});
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
  const auto begin_chunk = [&](int token) {  // documents are not cut
    if (token < scan.begin || a.q.T == 0) return;
    begin_logits(copies, shared, a, work, token, {0, scan.rows(token), false});
  };
  const int last = (scan.end - scan.begin + kChunk - 1) / kChunk - 1;
  const int last_chunk = scan.begin + last * kChunk;
  begin_chunk(last_chunk);
  for (int token = last_chunk; a.q.T > 0 && token >= scan.begin; token -= kChunk) {
    const ChunkSegment whole{0, scan.rows(token), false};
    const TileRows tile{thread / 32, thread % 32, 0, whole.end};
    copies.commit();
    const auto begin_tokens = [&] {
      keys.begin_readers(copies, a, scan, token, whole);
      values.begin_readers(copies, a, scan, token, whole);
    };
    open_given(copies, shared, a, work, token, whole, tile, keys, values, true, begin_tokens);
    copies.wait<0>();
    __syncthreads();  // readers, X and Y are there; nobody reads weights any more
    begin_chunk(token - kChunk);
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
