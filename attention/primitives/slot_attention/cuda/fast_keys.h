// What the scans backward in time share: tiles in shared memory, sides, and how reads become X and
// Y. Internal to this folder; see fast_backward.h.
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
  // A tile leaves nothing of these to the one before it in the segment.
  __device__ __forceinline__ void begin_passed(AsyncCopies& copies, const BackwardWork& work,
                                               const Scan& scan, int token,
                                               const ChunkSegment& segment) const {
    begin_rows<kSlots>(copies, tiles.passed, segment,
                       {either<of_values>(work.kept_dreads, work.kept_probabilities), nullptr,
                        scan.row, token, scan.head, 0});
  }
  // From after a tile's last token to the tile's own terms.
  __device__ __forceinline__ void pass_tile(const SlotScales& scales) {
    memory.scale([&](int slot) { return scales.inverse_total(slot); });
  }
  __device__ __forceinline__ void publish_rest(const SlotScales& scales) {
    pass_tile(scales);
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

// The values of a token, number `at` of all, in row `row`.
template <int M>
__device__ __forceinline__ void load_token(const Layout<M>& shared, const BackwardWork& work,
                                           int row, int64_t at, bool inside) {
  shared.keys.offsets[row] = inside ? work.shifts[at] - work.key_offsets.at(at) : 0.0f;
  shared.whole_means[row] = inside ? work.means[at] : 0.0f;
  shared.values.offsets[row] = inside ? work.means[at] - work.value_offsets.at(at) : 0.0f;
  // Finite where no slot is in use: all p are 0.
  shared.entropies[row] = inside ? fmaxf(work.entropies[at], -1e30f) : 0.0f;
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
