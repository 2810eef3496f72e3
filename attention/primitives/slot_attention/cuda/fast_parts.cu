// Parts of wide heads in the backward pass of slot attention: what 64 columns of keys or of values
// beyond the first ones add to reads, and their own gradients; see fast_backward.h.
#include "attention/primitives/slot_attention/cuda/fast_backward.h"
#include "attention/primitives/slot_attention/cuda/fast_sums.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {
namespace {

constexpr size_t kTile = size_t{kChunk} * (kPart + kPadding);

struct ReadLayout {
  __host__ __device__ explicit ReadLayout(SharedArena& arena)
      : readers(arena.take<kernel_bf16>(kTile)),
        own(arena.take<kernel_bf16>(kTile)),
        logits(arena.take<kernel_bf16>(kTile)),
        weights(arena.take<kernel_bf16>(kTile)),
        memory(arena.take<kernel_bf16>(kTile)),
        scales(arena),
        scan(arena.take<Scan>(1)) {}
  kernel_bf16 *readers, *own, *logits, *weights;
  kernel_bf16* memory;  // as the tile finds it
  SlotScales scales;
  Scan* scan;
};

// Begins to copy a segment of this part.
template <typename Layout>
__device__ __forceinline__ void begin_part(AsyncCopies& copies, const Layout& shared,
                                           const BackwardArguments& a, const PartArguments& part,
                                           const Scan& scan, int token,
                                           const ChunkSegment& segment) {
  begin_rows<kPart>(copies, shared.readers, segment,
                    {part.readers, a.query_mask, scan.row, token, scan.head, part.first});
  begin_rows<kPart>(copies, shared.own, segment,
                    {part.own, a.key_mask, scan.row, token, scan.head, part.first});
}

// Adds values of a warp's tokens, the first of the chunk being number `first_token`, to those of
// the parts before.
__device__ __forceinline__ void add_to_products(const BackwardArguments& a,
                                                const PartArguments& part, const TileRows& tile,
                                                int64_t first_token, int head,
                                                const SlotRows& rows) {
  visit_slots(tile, first_token, static_cast<int>(a.q.H), head, a.reading.slots,
              [&](int j, int half, int64_t at) {
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                  const float before = part.accumulate ? part.products[at + odd] : 0.0f;
                  part.products[at + odd] = before + rows.parts[j].values[2 * half + odd];
                }
              });
}

// Adds the warp's reads of this part to those of other parts and leaves the mean of its slots.
// products as of read_slots, sums as of sum_weights.
__device__ __forceinline__ void leave_reads(const BackwardArguments& a, const PartArguments& part,
                                            const TileRows& tile, int64_t first_token, int head,
                                            const SlotRows& products, const SlotRows& sums) {
  const int heads = static_cast<int>(a.q.H);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = 0, used = 0;
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        const float normalizer = sums.parts[j].values[i];
        if (!(normalizer > 0)) continue;
        total += products.parts[j].values[i] / normalizer;
        used += 1;
      }
    }
    total = row_sum(total);
    used = row_sum(used);
    if (!tile.has(half) || tile.lane % 4 != 0) continue;
    const int64_t token = first_token + tile.warp * 16 + half * 8 + tile.lane / 4;
    part.offsets[token * heads + head] = used > 0 ? total / used : 0.0f;
  }
  add_to_products(a, part, tile, first_token, head, products);
}

__global__ __launch_bounds__(kTileThreads,
                             2) void slot_attention_fast_part_reads(BackwardArguments a,
                                                                    PartArguments part) {
  SharedArena arena;
  const ReadLayout shared(arena);
  const SlotScales& scales = shared.scales;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = max(a.q.T, a.k.T), place = a.reading.place(blockIdx.x);
  const Scan& scan = begin_scan(shared.scan, a.spans, blockIdx.x, heads, time);

  MemoryTile<kPart> memory;
  memory.load(part.memory_in, place, slots, part.first, static_cast<int>(part.own.K));
  memory.publish(shared.memory);
  scales.load_normalizers(a.in.mass, place, slots);
  AsyncCopies copies;
  for (int token = scan.begin; token < scan.end; token += kChunk) {
    const int rows = scan.rows(token);
    scales.mark_begins(a.segments, scan, time, token);
    __syncthreads();  // where segments begin is there
    ChunkSegment segment{};
    TileRows tile{warp, lane, 0, 0};
    for (; tile.begin < rows; tile.begin = tile.end) {
      if (tile.begin == segment.end) {
        segment = scales.segment_from(tile.begin, rows);
        begin_part(copies, shared, a, part, scan, token, segment);
        const uint32_t logit_counts = begin_rows<kSlots>(
            copies, shared.logits, segment, {a.logits, a.key_mask, scan.row, token, scan.head, 0});
        copies.commit();
        if (segment.fresh) {
          memory.clear();
          memory.publish(shared.memory);
          scales.forget_normalizers();
        }
        copies.wait<0>();
        exclude_logits(shared.logits, logit_counts);
        __syncthreads();  // the segment and the memory are there
      }
      tile.end = begin_tile(scales, shared.logits, shared.weights, tile.begin, segment.end);
      if (tile.has_any()) {
        const int64_t first_token = scan.row * time + token;
        SlotRows reads = {}, sums;
        if (part.gathered.data == nullptr) {
          read_slots<kPart>(shared.readers, shared.own, shared.memory, shared.weights, scales.start,
                            tile, reads);
          sum_weights(shared.weights, scales, tile, sums);
          leave_reads(a, part, tile, first_token, scan.head, reads, sums);
        } else {
          sum_weights(shared.weights, scales, tile, sums);
          visit_slots(tile, first_token, heads, scan.head, slots, [&](int j, int half, int64_t at) {
            const auto pair = *reinterpret_cast<const uint32_t*>(a.kept_dreads.data + at);
            const float* normalizers = sums.parts[j].values + 2 * half;
            float* passed = reads.parts[j].values + 2 * half;
            passed[0] = normalizers[0] > 0 ? a.reading.scale * low_of(pair) / normalizers[0] : 0.0f;
            passed[1] =
                normalizers[1] > 0 ? a.reading.scale * high_of(pair) / normalizers[1] : 0.0f;
          });
          ResultFragment dq[kPart / 8] = {};
          gather_slots<kPart>(reads, shared.own, shared.memory, shared.weights, scales.start, tile,
                              dq);
          const TilePlace<kernel_bf16> to{part.gathered, a.query_mask, scan.row,
                                          token,         scan.head,    part.first};
          if (a.adds) add_stored_rows<kPart>(to, tile, {1, 1}, dq);
          // The tile's logits are weights by now; those of later tiles stay.
          store_tile_rows<kPart>(dq, shared.logits, kSlotStride, tile, to);
        }
      }
      leave_totals(shared.weights, scales, tile);
      memory.scale([&](int slot) { return scales.start[slot]; });
      memory.add(shared.weights, shared.own, tile);
      __syncthreads();  // nobody reads the tile or the memory any more; totals are there
      memory.scale([&](int slot) { return scales.inverse_total(slot); });
      memory.publish(shared.memory);
      if (thread < kSlots) scales.log_normalizer[thread] = scales.normalizer_after(thread);
    }
  }
}

struct GradientLayout {
  __host__ __device__ explicit GradientLayout(SharedArena& arena)
      : readers(arena.take<kernel_bf16>(kTile)),
        own(arena.take<kernel_bf16>(kTile)),
        weights(arena.take<kernel_bf16>(kTile)),
        passed(arena.take<kernel_bf16>(kTile)),
        memory(arena.take<kernel_bf16>(kTile)),
        scales(arena),
        carried(arena.take<float>(kSlots)),
        offsets(arena.take<float>(kChunk)),
        sums(arena.take<float>(size_t{kChunk / 16} * kSlots)),
        scan(arena.take<Scan>(1)) {}
  kernel_bf16 *readers, *own;
  kernel_bf16* weights;  // logits, then w
  kernel_bf16* passed;   // dr or p, then X or Y
  kernel_bf16* memory;   // this part of GK or GV
  SlotScales scales;
  float* carried;  // minus the sum of X or Y of later tokens times offsets
  float* offsets;  // of the tile's tokens
  float* sums;     // of X or Y times offsets over each warp's tokens
  Scan* scan;
};

// dr or p of a warp's tokens -> X or Y, 0 outside the tile; their sums beside them.
__device__ __forceinline__ void pass_part(const GradientLayout& shared, const PartArguments& part,
                                          const TileRows& tile, const SlotRows& normalizers) {
  const int lane = tile.lane;
  const auto kept = [&](float x) { return part.of_values && x < 0 ? 0.0f : x; };
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
    float sums[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.warp * 16 + half * 8 + lane / 4;
      auto* x =
          reinterpret_cast<uint32_t*>(shared.passed + row * kSlotStride + slot_of(j, 0, lane));
      float inverses[2];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float normalizer = normalizers.parts[j].values[2 * half + odd];
        inverses[odd] = tile.has(half) && normalizer > 0 ? part.factor / normalizer : 0.0f;
      }
      *x = pack(kept(low_of(*x)) * inverses[0], kept(high_of(*x)) * inverses[1]);
      sums[0] += low_of(*x) * shared.offsets[row];
      sums[1] += high_of(*x) * shared.offsets[row];
    }
    leave_sums(sums, j, tile, shared.sums);
  }
}

__global__ __launch_bounds__(kTileThreads,
                             2) void slot_attention_fast_part_gradients(BackwardArguments a,
                                                                        PartArguments part) {
  SharedArena arena;
  const GradientLayout shared(arena);
  const SlotScales& scales = shared.scales;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = max(a.q.T, a.k.T), place = a.reading.place(blockIdx.x);
  const Scan& scan = begin_scan(shared.scan, a.spans, blockIdx.x, heads, time);

  MemoryTile<kPart> memory;
  memory.load(part.dmemory_out, place, slots, part.first, static_cast<int>(part.own.K));
  if (thread < kSlots) shared.carried[thread] = 0;
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
        begin_part(copies, shared, a, part, scan, token, segment);
      }
      step_back(tile, tiles);
      const uint32_t logit_counts = begin_rows<kSlots>(
          copies, shared.weights, segment, {a.logits, a.key_mask, scan.row, token, scan.head, 0});
      begin_rows<kSlots>(copies, shared.passed, segment,
                         {part.passed, nullptr, scan.row, token, scan.head, 0});
      copies.commit();
      if (thread < kChunk) {
        const bool inside = tile.begin <= thread && thread < tile.end;
        const int64_t at = (scan.row * time + token + thread) * heads + scan.head;
        shared.offsets[thread] = inside ? part.offsets[at] : 0.0f;
      }
      copies.wait<0>();
      recompute_weights(scales, shared.weights, logit_counts, tile, segment, tiles,
                        a.chunk_normalizers + chunk * slots, slots);
      if (tile.has_any()) {
        SlotRows normalizers;
        sum_weights(shared.weights, scales, tile, normalizers);
        pass_part(shared, part, tile, normalizers);
      }
      __syncthreads();  // so are totals, X or Y
      memory.scale([&](int slot) { return scales.inverse_total(slot); });
      memory.publish_rest(shared.memory);
      if (thread < kSlots) shared.carried[thread] *= scales.inverse_total(thread);
      __syncthreads();  // so is the rest of later tokens' terms
      SlotRows dlogits;
      if (tile.has_any()) {
        spread_slots(shared.carried, lane, dlogits);
        add_memory<kPart>(shared.own, shared.memory, tile, dlogits);
      }
      __syncthreads();  // nobody reads the rest any more
      memory.publish(shared.memory);
      __syncthreads();  // later tokens' terms are there

      if (tile.has_any()) {
        add_memory<kPart>(shared.own, shared.memory, tile, dlogits);
        add_products<kPart>(shared.own, shared.readers, shared.offsets, shared.passed, tile,
                            dlogits);
        add_to_products(a, part, tile, scan.row * time + token, scan.head, dlogits);
        LeftFragment weights[kSlots / 16];
        load_weights(shared.weights, tile, weights);
        ResultFragment sums[kPart / 8];
        gather_readers<kPart>(weights, shared.passed, shared.readers, shared.memory, tile, sums);
        const TilePlace<kernel_bf16> to{part.gathered, a.key_mask, scan.row,
                                        token,         scan.head,  part.first};
        if (a.adds) add_stored_rows<kPart>(to, tile, {1, 1}, sums);
        // A warp alone reads the part of the tile that it writes.
        store_tile_rows<kPart>(sums, shared.own, kPart + kPadding, tile, to);
      }
      memory.add(shared.passed, shared.readers, tile);
      memory.scale([&](int slot) { return scales.start[slot]; });
      __syncthreads();  // nobody reads the tile any more
      if (thread < kSlots) carry_sums(shared.carried, shared.sums, scales, tile);
      if (segment.fresh && tile.begin == segment.begin) {
        memory.clear();
        if (thread < kSlots) shared.carried[thread] = 0;
      }
    }
  }
  memory.store(part.dmemory_in, place, slots, part.first, static_cast<int>(part.own.K));
  if (thread >= slots) return;
  float* sum = part.sums + int64_t{blockIdx.x} * slots + thread;
  *sum = (part.accumulate ? *sum : 0.0f) + shared.carried[thread];
}

}  // namespace

void run_part_reads(const BackwardArguments& arguments, const PartArguments& part) {
  launch({"slot_attention_fast_part_reads", blocks_for(arguments.scans * arguments.q.H, 1),
          kTileThreads, shared_bytes<ReadLayout>()},
         slot_attention_fast_part_reads, arguments, part);
}

void run_part_gradients(const BackwardArguments& arguments, const PartArguments& part) {
  launch({"slot_attention_fast_part_gradients", blocks_for(arguments.scans * arguments.q.H, 1),
          kTileThreads, shared_bytes<GradientLayout>()},
         slot_attention_fast_part_gradients, arguments, part);
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
