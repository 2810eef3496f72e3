// What the scans backward in time share: tiles in shared memory, sides, copies, and how reads
// become X and Y. Internal to this folder; see fast_backward.h.
//
// A tile's rows are copied in three groups, each asked for as soon as nobody reads its place and
// waited for where it is first read:
//   logits, with the normalizers before their chunk, in the tile after theirs (which comes before
//   it in these scans), when its own are used up;
//   dr and p, when that tile is done, until the tile's weights have been summed;
//   rows of q, do, k and v, at the same time, until X, Y and later tokens' terms have been made.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast_backward.h"
#include "attention/primitives/slot_attention/cuda/fast_sums.h"

namespace linnet::cuda::slot_attention_fast::backward_detail::key_scans {

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
        passed_on(arena.take<float>(kSlots)),
        sums(arena.take<float>(size_t{kChunk / 16} * kSlots)),
        scan(arena.take<Scan>(1)) {}
  kernel_bf16* weights;  // logits, then w
  SlotScales scales;
  // Of dr r + p d u over c, or of a part X or Y times offsets: minus the sum of later tokens.
  float* carried;
  float* passed_on;  // by which GK and GV are still to be multiplied: start of the later tile
  float* sums;       // of what is carried, over each warp's tokens
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
  // What comes after; zeros where it is not `given`.
  __device__ __forceinline__ void load(const Backward& a, int64_t place, bool given = true) {
    const float* from = either<of_values>(a.dkeys_out, a.dvalues_out);
    memory.load(given ? from : nullptr, place, a.reading.slots, first, width(a));
  }
  __device__ __forceinline__ void store(float* to, const Backward& a, int64_t place) const {
    memory.store(to, place, a.reading.slots, first, width(a));
  }
  __device__ __forceinline__ void store(const Backward& a, int64_t place) const {
    store(either<of_values>(a.dkeys_in, a.dvalues_in), a, place);
  }
  __device__ __forceinline__ void begin_readers(AsyncCopies& copies, const Backward& a,
                                                const Scan& scan, int token,
                                                const ChunkSegment& segment) const {
    begin_rows<M>(copies, tiles.readers, segment,
                  {either<of_values>(a.q, a.d_o), a.query_mask, scan.row, token, scan.head, first});
  }
  __device__ __forceinline__ void begin_sequences(AsyncCopies& copies, const Backward& a,
                                                  const Scan& scan, int token,
                                                  const ChunkSegment& segment) const {
    begin_side<of_values>(copies, tiles, a, scan, token, segment, first);
  }
  // A tile leaves nothing of these to the one before it in the segment. A warp's own rows.
  __device__ __forceinline__ void begin_passed(AsyncCopies& copies, const BackwardWork& work,
                                               const Scan& scan, int token,
                                               const ChunkSegment& segment) const {
    begin_rows<kSlots, OwnRows>(copies, tiles.passed, segment,
                                {either<of_values>(work.kept_dreads, work.kept_probabilities),
                                 nullptr, scan.row, token, scan.head, 0});
  }
  // From before the later tile to the tile's own terms.
  __device__ __forceinline__ void pass_tile(const Common& shared) {
    memory.scale(
        [&](int slot) { return shared.passed_on[slot] * shared.scales.inverse_total(slot); });
  }
  __device__ __forceinline__ void finish(const Common& shared) {
    memory.scale([&](int slot) { return shared.passed_on[slot]; });
  }
  __device__ __forceinline__ void publish_rest(const Common& shared) {
    pass_tile(shared);
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
  __device__ __forceinline__ void add_readers(const TileRows& tile) {
    memory.add(tiles.passed, tiles.readers, tile, {1, 1});
  }
};

// From after a tile to before it: what is carried, and what GK and GV are multiplied by next.
__device__ __forceinline__ void carry_sums(const Common& shared, const TileRows& tile) {
  const int slot = static_cast<int>(threadIdx.x);
  if (slot >= kSlots) return;
  float left = shared.carried[slot];
  for (int warp = tile.first_square(); warp < tile.end_square(); ++warp) {
    left -= shared.sums[warp * kSlots + slot];
  }
  const float start = shared.scales.start[slot];
  shared.carried[slot] = left * start;
  shared.passed_on[slot] = start;
}

// Two neighbouring slots of a token.
struct PassedPair {
  int half;                    // the token is the one in row lane / 4 + 8 half of its warp's
  uint32_t *x, *y, *surprise;  // where X, Y and the surprises go
  float dreads[2], ps[2];      // dr and p
  const float* normalizers;
  bool counts;  // the token is in the tile
};
// Calls body(pair, sums) for all pairs of a warp's tokens; `sums`, of each slot over the tokens,
// are left where it `leaves` them.
template <int M, typename Body>
__device__ __forceinline__ void pass_pairs(const Layout<M>& shared, const TileRows& tile,
                                           const SlotRows& normalizers, bool leaves,
                                           const Body& body) {
  float sums[kSlots / 4] = {};
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.warp * 16 + half * 8 + tile.lane / 4;
      const int at = row * kSlotStride + slot_of(j, 0, tile.lane);
      auto* x = reinterpret_cast<uint32_t*>(shared.keys.passed + at);
      auto* y = reinterpret_cast<uint32_t*>(shared.values.passed + at);
      body(PassedPair{half,
                      x,
                      y,
                      reinterpret_cast<uint32_t*>(shared.surprises + at),
                      {low_of(*x), high_of(*x)},
                      {low_of(*y), high_of(*y)},
                      normalizers.parts[j].values + 2 * half,
                      tile.has(half)},
           sums + 2 * j);
    }
  }
  if (leaves) leave_sums(sums, tile, shared.sums);
}

// Of a lane's two tokens an array's values.
struct OfTokens {
  float values[2];

  __device__ __forceinline__ OfTokens(const float* from, const TileRows& tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      values[half] = from[tile.warp * 16 + half * 8 + tile.lane / 4];
    }
  }
  __device__ __forceinline__ float operator[](int half) const {
    return values[half];
  }
};

// dr and p of a warp's tokens -> X and Y, 0 outside the tile; their surprises and sums beside
// them. Where it `drops`, dropped elements have a negative p and the others are multiplied by
// `keep`.
template <int M, bool drops>
__device__ __forceinline__ void pass_reads(const Layout<M>& shared, const TileRows& tile,
                                           float scale, float keep, const SlotRows& normalizers) {
  const float back = -reciprocal(scale);
  const OfTokens entropies(shared.entropies, tile), shifts(shared.keys.offsets, tile),
      offsets(shared.values.offsets, tile), means(shared.whole_means, tile);
  pass_pairs(shared, tile, normalizers, true, [&](const PassedPair& at, float* sums) {
    const float offset = entropies[at.half] + 1;
    float xs[2], ys[2], surprises[2], dropped[2] = {};
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float normalizer = at.normalizers[odd];
      const float inverse = at.counts && normalizer > 0 ? reciprocal(normalizer) : 0.0f;
      xs[odd] = at.dreads[odd] * (scale * inverse);
      ys[odd] = at.ps[odd] * inverse;
      // Where p is 0, so is dr.
      surprises[odd] = back * (fast_log(fabsf(at.ps[odd])) + offset);
      if constexpr (drops) {
        const float factor = at.ps[odd] < 0 ? 0.0f : keep;
        dropped[odd] = means[at.half] * fabsf(ys[odd]) * (1 - factor);
        ys[odd] *= factor;
      }
    }
    const uint32_t x_pair = pack(xs[0], xs[1]), y_pair = pack(ys[0], ys[1]);
    const float x_both[2] = {low_of(x_pair), high_of(x_pair)};
    const float y_both[2] = {low_of(y_pair), high_of(y_pair)};
    // From X as rounded, so that the common part of all keys or values cancels.
    const uint32_t pair =
        pack(x_both[0] * surprises[0] - dropped[0], x_both[1] * surprises[1] - dropped[1]);
    *at.x = x_pair;
    *at.y = y_pair;
    *at.surprise = pair;
    const float surprised[2] = {low_of(pair), high_of(pair)};
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      sums[odd] = fmaf(x_both[odd], shifts[at.half],
                       fmaf(y_both[odd], offsets[at.half], sums[odd] - surprised[odd]));
    }
  });
}

// dr or p of a warp's tokens -> X or Y of a part, 0 outside the tile; their sums beside them.
template <bool of_values>
__device__ __forceinline__ void pass_part(const PartLayout& shared, float factor,
                                          const TileRows& tile, const SlotRows& normalizers) {
  const int lane = tile.lane;
  const auto kept = [](float x) { return of_values && x < 0 ? 0.0f : x; };
  float sums[kSlots / 4] = {};
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
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
      sums[2 * j] += low_of(*x) * shared.side.offsets[row];
      sums[2 * j + 1] += high_of(*x) * shared.side.offsets[row];
    }
  }
  leave_sums(sums, tile, shared.sums);
}

// The values of a token, number `at` of all; zeros where it is not inside the tile.
struct TokenValues {
  float key_offset, value_offset, mean, entropy;

  __device__ __forceinline__ static TokenValues load(const BackwardWork& work, int64_t at,
                                                     bool inside) {
    if (!inside) return {};
    const float mean = work.means[at];
    // Finite where no slot is in use: all p are 0.
    return {work.shifts[at] - work.key_offsets.at(at), mean - work.value_offsets.at(at), mean,
            fmaxf(work.entropies[at], -1e20f)};
  }
  template <int M>
  __device__ __forceinline__ void leave(const Layout<M>& shared, int row) const {
    shared.keys.offsets[row] = key_offset;
    shared.values.offsets[row] = value_offset;
    shared.whole_means[row] = mean;
    shared.entropies[row] = entropy;
  }
};

// Begins to copy a chunk's logits, each warp its own rows, and the normalizers before the chunk.
// Returns which logits count.
__device__ __forceinline__ uint32_t begin_logits(AsyncCopies& copies, const Common& shared,
                                                 const Backward& a, const BackwardWork& work,
                                                 int token, const ChunkSegment& segment) {
  const Scan& scan = *shared.scan;
  const int first = 2 * static_cast<int>(threadIdx.x), slots = a.reading.slots;
  if (first < slots) {
    const int64_t chunk = work.chunk_number(scan, a.time(), token);
    copies.copy(shared.scales.log_normalizer + first,
                work.chunk_normalizers + chunk * slots + first, true);
  }
  return begin_rows<kSlots, OwnRows>(copies, shared.weights, segment,
                                     {a.logits, a.key_mask, scan.row, token, scan.head, 0});
}

// Begins a tile: asks for its rows, those of tokens by begin_tokens(), waits for its logits and
// makes weights, totals, X and Y, before which a barrier is missing. load(at, inside) has the
// values of token number `at` of all, leave(row, values) keeps them, pass(tile, normalizers) makes
// X and Y, by warps that have rows of the tile.
template <typename BeginTokens, typename Load, typename Leave, typename Pass, typename... Sides>
__device__ __forceinline__ void open_tile(AsyncCopies& copies, const Common& shared,
                                          const Backward& a, const BackwardWork& work, int token,
                                          const ChunkSegment& segment, uint64_t tiles,
                                          const TileRows& tile, uint32_t logit_counts,
                                          const BeginTokens& begin_tokens, const Load& load,
                                          const Leave& leave, const Pass& pass,
                                          const Sides&... sides) {
  const Scan& scan = *shared.scan;
  (sides.begin_passed(copies, work, scan, token, segment), ...);
  copies.commit();
  begin_tokens();
  copies.commit();
  const int row = tile.warp * 16 + tile.lane;  // of 16 lanes
  const bool has_row = tile.lane < 16;
  const auto values = load((scan.row * a.time() + token + row) * a.q.H + scan.head,
                           has_row && tile.begin <= row && row < tile.end);
  copies.wait<2>();
  recompute_weights(shared.scales, shared.weights, logit_counts, tile, segment, tiles,
                    a.reading.slots);
  if (!tile.has_any()) return;
  SlotRows normalizers;
  sum_weights(shared.weights, shared.scales, tile, normalizers);
  if (has_row) leave(row, values);
  copies.wait<1>();
  __syncwarp();  // the warp's dr and p are there
  pass(tile, normalizers);
}

// Calls pass_reads.
template <int M>
__device__ __forceinline__ void pass_whole(const Layout<M>& shared, const Backward& a,
                                           const TileRows& tile, const SlotRows& normalizers) {
  const float scale = a.reading.scale, keep = a.dropout.row.keep;
  if (a.dropout.drops) return pass_reads<M, true>(shared, tile, scale, keep, normalizers);
  pass_reads<M, false>(shared, tile, scale, keep, normalizers);
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail::key_scans
