// The gradient of queries, forward in time, and the inputs of the scan backward in time; what
// further parts of wide heads add to reads. See fast_backward.h.
//
// The next chunk's rows are copied in two groups, to where they are read (a second stage would cost
// a block of a GPU with 164 KiB a multiprocessor): logits when the last tile of a chunk has become
// weights, the others, and given logits, when memories have been written; both are waited for where
// they are first read.
#include "attention/primitives/slot_attention/cuda/fast_backward.h"
#include "attention/primitives/slot_attention/cuda/fast_given.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {
namespace {

// What a scan has, whichever its sides.
struct Common {
  __host__ __device__ explicit Common(SharedArena& arena)
      : logits(arena.take<kernel_bf16>(size_t{kChunk} * kSlotStride)),
        weights(arena.take<kernel_bf16>(size_t{kChunk} * kSlotStride)),
        scales(arena),
        scan(arena.take<Scan>(1)) {}
  kernel_bf16 *logits, *weights;
  SlotScales scales;
  Scan* scan;
};

template <int M>
struct Layout : Common {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : Common(arena),
        keys(arena),
        values(arena),
        draws(arena.take<ScanDraws>(1)),
        staging(M < kSlots ? arena.take<kernel_bf16>(size_t{kChunk} * kSlotStride) : keys.readers) {
  }
  SideTiles<M> keys, values;
  ScanDraws* draws;
  // Rows for results on their way out. Wide enough, they are those of the tile's queries, which
  // nobody but their own warp reads, and it no more.
  kernel_bf16* staging;
};

struct PartLayout : Common {
  __host__ __device__ explicit PartLayout(SharedArena& arena) : Common(arena), side(arena) {}
  SideTiles<kPart> side;
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

// Scans the chunks of a block, of each of whose tiles begin(token, row) is called first,
// copy(copies, token, segment) to begin to copy rows beside logits, and read(token, tile, weights)
// by the warps that have rows of it.
template <bool given, typename Begin, typename Copy, typename Read, typename... Memories>
__device__ __forceinline__ void scan_chunks(const Backward& a, const Common& shared,
                                            const Begin& begin, const Copy& copy, const Read& read,
                                            Memories&... memories) {
  const SlotScales& scales = shared.scales;
  const Scan& scan = *shared.scan;
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t summed = given ? a.given.summed() : ~0u;
  AsyncCopies copies;
  const auto whole = [&](int token) { return ChunkSegment{0, scan.rows(token), false}; };
  // Returns which logits count.
  const auto begin_logits = [&](int token, const ChunkSegment& segment) {
    return begin_rows<kSlots>(copies, shared.logits, segment,
                              {a.logits, a.key_mask, scan.row, token, scan.head, 0});
  };
  kernel_bf16* const logits = shared.logits;
  kernel_bf16* const weights = given ? logits : shared.weights;
  uint32_t logit_counts = TilePart<kSlots>::kAll;
  for (int token = scan.begin; token < scan.end; token += kChunk) {
    const int rows = scan.rows(token), next = token + kChunk;
    const bool is_first = token == scan.begin;
    begin(token, 0);
    if (is_first || a.segments != nullptr) {
      scales.mark_begins(a.segments, scan, a.time(), token);
    }
    copies.wait<given ? 0 : 1>();  // of given weights for all: there is nothing to do before reads
    if constexpr (!given) exclude_logits(logits, logit_counts);
    __syncthreads();  // logits and where segments begin are there
    ChunkSegment segment{};
    TileRows tile{thread / 32, thread % 32, 0, 0};
    for (; tile.begin < rows; tile.begin = tile.end) {
      if (tile.begin == segment.end) {
        segment = scales.segment_from(tile.begin, rows);
        if (segment.fresh) forget_all<given>(scales, memories...);
        if (is_first || segment.end - segment.begin < rows) {  // was not copied ahead
          copies.wait<0>();
          copy(copies, token, segment);
          const uint32_t counts = begin_logits(token, segment);
          copies.commit();
          copies.wait<0>();
          if constexpr (!given) exclude_logits(logits, counts);
          __syncthreads();  // the segment and the memories are there
        } else if (given && segment.fresh) {
          __syncthreads();  // the memories are there
        }
      }
      if (tile.begin > 0) begin(token, tile.begin);
      tile.end = segment.end;
      if constexpr (!given) {
        const auto arrive = [&] {
          copies.wait<0>();
          (memories.begin_tile(scales), ...);
        };
        tile.end = begin_tile(scales, logits, weights, tile.begin, segment.end, arrive);
      }
      const bool goes_on = tile.end == rows && next < scan.end;
      if constexpr (!given) {
        if (goes_on) logit_counts = begin_logits(next, whole(next));  // this chunk's are used up
        copies.commit();
      }
      if (tile.has_any()) read(token, tile, weights);
      const auto freed = [&] {
        if (goes_on) copy(copies, next, whole(next));
        if (given && goes_on) begin_logits(next, whole(next));
        copies.commit();
      };
      const bool writes = a.k.T > 0;  // else a memory is only read
      write_weights_of<given>(scales, weights, tile, summed, writes, freed, memories...);
    }
  }
}

template <int M, bool given>
__device__ __forceinline__ void scan_queries(const Backward& a, const BackwardWork& work) {
  SharedArena arena;
  const Layout<M> shared(arena);
  const SlotScales& scales = shared.scales;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int time = static_cast<int>(a.time());
  const int64_t place = a.place_of_start(blockIdx.x, gridDim.x);
  const Scan& scan = begin_scan(shared.scan, a, blockIdx.x);
  begin_draws(shared.draws, a.dropout, scan, a.reading);

  ScannedMemory<M> keys{{}, shared.keys.memory, shared.keys.own},
      values{{}, shared.values.memory, shared.values.own};
  keys.load(a.state_in.keys, place, slots, 0, static_cast<int>(a.k.K));
  values.load(a.state_in.values, place, slots, 0, static_cast<int>(a.v.K));
  keys.publish();
  values.publish();
  load_normalizers<given>(scales, a.state_in.mass, place, slots);
  kernel_bf16* const staging = shared.staging;
  const auto begin = [&](int token, int row) {
    const int64_t chunk = work.chunk_number(scan, time, token);
    if (row == 0 && thread < slots) {
      work.chunk_normalizers[chunk * slots + thread] = scales.log_normalizer[thread];
    }
    if (thread > 0) return;
    const int64_t before = row == 0 ? 0 : work.chunk_tiles[chunk];
    work.chunk_tiles[chunk] = before | int64_t{1} << row;
  };
  const auto copy = [&](AsyncCopies& copies, int token, const ChunkSegment& segment) {
    begin_side<false>(copies, shared.keys, a, scan, token, segment, 0);
    begin_side<true>(copies, shared.values, a, scan, token, segment, 0);
  };
  // For one lane of each of a warp's rows.
  const auto leave_rows = [&](int token, const TileRows& tile, const auto& leave) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int reader = token + tile.warp * 16 + half * 8 + lane / 4;
      if (lane % 4 != 0 || !tile.has(half)) continue;
      leave(half, (int64_t{scan.row} * time + reader) * heads + scan.head);
    }
  };
  const auto read = [&](int token, const TileRows& tile, const kernel_bf16* weights) {
    SlotRows gradients, reads, sums;
    const uint32_t kept = a.dropout.drops ? kept_slots(*shared.draws, tile, token) : 0;
    const int64_t first_token = int64_t{scan.row} * time + token;
    read_slots<M, true>(shared.keys.readers, shared.keys.own, shared.keys.memory, weights,
                        scales.start, tile, reads, sums, given ? a.given.summed() : ~0u);
    if constexpr (given) make_divisors(a.given, sums);
    add_slots(work.other_reads, tile, first_token, heads, scan.head, slots, reads);
    float log_sums[2];
    RowMeans row_means;
    softmax(a.reading, lane, reads, sums, log_sums, &row_means);
    leave_rows(token, tile, [&](int half, int64_t at) {
      work.shifts[at] = row_means.logits[half] / a.reading.scale;
      work.entropies[at] = row_means.entropies[half];
    });
    read_slots<M, false>(shared.values.readers, shared.values.own, shared.values.memory, weights,
                         scales.start, tile, gradients, sums);
    add_slots(work.other_dreads, tile, first_token, heads, scan.head, slots, gradients);
    if (a.dropout.drops) drop<kSlots>(kept, 0, a.dropout.row.keep, gradients.parts);
    float means[2];
    read_gradients(reads, sums, gradients, means);
    leave_rows(token, tile, [&](int half, int64_t at) { work.means[at] = means[half]; });
    if (a.dropout.drops) mark_dropped(kept, reads);
    store_tile_rows<kSlots>(reads.parts, staging, kSlotStride, tile,
                            {work.probabilities, nullptr, scan.row, token, scan.head, 0});
    store_tile_rows<kSlots>(gradients.parts, staging, kSlotStride, tile,
                            {work.dreads, nullptr, scan.row, token, scan.head, 0});
    if (a.dq.data != nullptr) {
#pragma unroll
      for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          gradients.parts[j].values[i] *= a.reading.scale * sums.parts[j].values[i];
        }
      }
      ResultFragment dq[M / 8] = {};
      gather_slots<M>(gradients, shared.keys.own, shared.keys.memory, weights, tile, dq);
      store_tile_rows<M>(dq, staging, kSlotStride, tile,
                         {a.dq, a.query_mask, scan.row, token, scan.head, 0});
    }
  };
  scan_chunks<given>(a, shared, begin, copy, read, keys, values);
}

template <int M>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_queries(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work) {
  scan_queries<M, false>(a, work);
}
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_given_queries(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work) {
  scan_queries<kPart, true>(a, work);
}

// The mean of a warp's reads of a part over its slots. products as of read_slots, sums as of
// sum_weights; `token` begins the chunk, counted over all rows.
__device__ __forceinline__ void leave_offsets(const SlotRows& products, const SlotRows& sums,
                                              const TileRows& tile, int64_t token, int heads,
                                              int head, float* offsets) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = 0, used = 0;
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        const float normalizer = sums.parts[j].values[i];
        if (!(normalizer > 0)) continue;
        total += products.parts[j].values[i] * reciprocal(normalizer);
        used += 1;
      }
    }
    total = row_sum(total);
    used = row_sum(used);
    if (!tile.has(half) || tile.lane % 4 != 0) continue;
    const int64_t reader = token + tile.warp * 16 + half * 8 + tile.lane / 4;
    offsets[reader * heads + head] = used > 0 ? total / used : 0.0f;
  }
}

// Columns from part.first on: reads of keys or of values, or, where it `gathers`, dq.
template <bool of_values, bool gathers, bool given>
__device__ __forceinline__ void scan_part(const Backward& a, const BackwardWork& work,
                                          const WidePart& part) {
  SharedArena arena;
  const PartLayout shared(arena);
  const SlotScales& scales = shared.scales;
  const int heads = static_cast<int>(a.q.H), slots = a.reading.slots;
  const int64_t time = a.time(), place = a.place_of_start(blockIdx.x, gridDim.x);
  const Scan& scan = begin_scan(shared.scan, a, blockIdx.x);

  ScannedMemory<kPart> memory{{}, shared.side.memory, shared.side.own};
  memory.load(either<of_values>(a.state_in.keys, a.state_in.values), place, slots, part.first,
              static_cast<int>(either<of_values>(a.k, a.v).K));
  memory.publish();
  load_normalizers<given>(scales, a.state_in.mass, place, slots);
  const auto copy = [&](AsyncCopies& copies, int token, const ChunkSegment& segment) {
    if constexpr (gathers) {
      begin_own<of_values>(copies, shared.side, a, scan, token, segment, part.first);
    } else {
      begin_side<of_values>(copies, shared.side, a, scan, token, segment, part.first);
    }
  };
  const auto read = [&](int token, const TileRows& tile, const kernel_bf16* weights) {
    const int64_t first_token = scan.row * time + token;
    SlotRows reads = {}, sums;
    if constexpr (!gathers) {
      read_slots<kPart, true>(shared.side.readers, shared.side.own, shared.side.memory, weights,
                              scales.start, tile, reads, sums);
      leave_offsets(reads, sums, tile, first_token, heads, scan.head, part.offsets);
      leave_slots(reads, part.accumulate, tile, first_token, heads, scan.head, slots,
                  part.products);
    } else {
      const float scale = a.reading.scale;
      const auto inverse_of = [](float sum) { return sum > 0 ? reciprocal(sum) : 0.0f; };
      sum_weights(weights, scales, tile, sums, given ? a.given.summed() : ~0u);
      if constexpr (given) make_divisors(a.given, sums);
      visit_slots(tile, first_token, heads, scan.head, slots, [&](int j, int half, int64_t at) {
        const auto pair = *reinterpret_cast<const uint32_t*>(work.kept_dreads.data + at);
        const float* normalizers = sums.parts[j].values + 2 * half;
        float* passed = reads.parts[j].values + 2 * half;
        passed[0] = scale * low_of(pair) * inverse_of(normalizers[0]);
        passed[1] = scale * high_of(pair) * inverse_of(normalizers[1]);
      });
      ResultFragment dq[kPart / 8] = {};
      gather_slots<kPart>(reads, shared.side.own, shared.side.memory, weights, tile, dq);
      const TilePlace<kernel_bf16> to{a.dq, a.query_mask, scan.row, token, scan.head, part.first};
      if (work.adds) add_stored_rows<kPart>(to, tile, {1, 1}, dq);
      store_tile_rows<kPart>(dq, shared.side.readers, kPart + kPadding, tile,
                             to);  // of dq no readers
    }
  };
  scan_chunks<given>(
      a, shared, [](int, int) {}, copy, read, memory);
}

template <bool of_values, bool gathers>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_part_reads(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work,
    const __grid_constant__ WidePart part) {
  scan_part<of_values, gathers, false>(a, work, part);
}
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_given_part_dq(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work,
    const __grid_constant__ WidePart part) {
  scan_part<false, true, true>(a, work, part);
}

template <bool of_values, bool gathers>
void run_part(const Backward& call, const BackwardWork& work, const WidePart& part) {
  launch(
      {"slot_attention_fast_part_reads", work.grid(call), kTileThreads, shared_bytes<PartLayout>()},
      slot_attention_fast_part_reads<of_values, gathers>, call, work, part);
}

}  // namespace

void run_part_reads(const Backward& call, const BackwardWork& work, bool values,
                    const WidePart& part) {
  return values ? run_part<true, false>(call, work, part)
                : run_part<false, false>(call, work, part);
}

void run_part_dq(const Backward& call, const BackwardWork& work, int first) {
  const WidePart part{first, false, nullptr, nullptr, nullptr};
  if (!call.given.are) return run_part<false, true>(call, work, part);
  launch(
      {"slot_attention_given_part_dq", work.grid(call), kTileThreads, shared_bytes<PartLayout>()},
      slot_attention_given_part_dq, call, work, part);
}

void run_queries(const Backward& call, const BackwardWork& work) {
  if (call.given.are) {
    return launch({"slot_attention_given_queries", work.grid(call), kTileThreads,
                   shared_bytes<Layout<kPart>>()},
                  slot_attention_given_queries, call, work);
  }
  with_width(call, [&](auto width) {
    constexpr int M = decltype(width)::value;
    launch(
        {"slot_attention_fast_queries", work.grid(call), kTileThreads, shared_bytes<Layout<M>>()},
        slot_attention_fast_queries<M>, call, work);
  });
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
