// What each split of a cut sequence adds to the gradients of memories before it: the scan backward
// in time without gradients of its tokens. See fast_backward.h and fast_ends.h.
#include "attention/primitives/slot_attention/cuda/fast_keys.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {
namespace {

using namespace key_scans;

// Scans the chunks of a block's split; load, leave and pass as in open_tile().
template <typename Load, typename Leave, typename Pass, typename... Sides>
__device__ __forceinline__ void sum_back(const Backward& a, const BackwardWork& work,
                                         const Common& shared, const Load& load, const Leave& leave,
                                         const Pass& pass, Sides&... sides) {
  const SlotScales& scales = shared.scales;
  const Scan& scan = *shared.scan;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kSlots) shared.passed_on[thread] = 1;
  AsyncCopies copies;
  const auto whole = [&](int token) {  // documents are not cut
    return ChunkSegment{0, scan.rows(token), false};
  };
  const auto begin_chunk = [&](int token) {
    const uint32_t counts = begin_logits(copies, shared, a, work, token, whole(token));
    copies.commit();
    return counts;
  };
  const int last = (scan.end - scan.begin + kChunk - 1) / kChunk - 1;
  const int last_chunk = scan.begin + last * kChunk;
  uint32_t logit_counts = begin_chunk(last_chunk);  // no split is empty
  for (int token = last_chunk; token >= scan.begin; token -= kChunk) {
    const auto tiles =
        static_cast<uint64_t>(work.chunk_tiles[work.chunk_number(scan, a.time(), token)]);
    const int rows = scan.rows(token);
    TileRows tile{thread / 32, thread % 32, rows, rows};
    while (tile.begin > 0) {
      step_back(tile, tiles);
      const auto begin_tokens = [&] {
        if (tile.end == rows) (sides.begin_readers(copies, a, scan, token, whole(token)), ...);
      };
      open_tile(copies, shared, a, work, token, whole(token), tiles, tile, logit_counts,
                begin_tokens, load, leave, pass, sides...);
      copies.wait<0>();
      __syncthreads();  // readers, totals, X and Y are there; nobody reads weights any more
      const int next = tile.begin > 0 ? token : token - kChunk;
      if (next >= scan.begin) logit_counts = begin_chunk(next);
      (sides.pass_tile(shared), ...);
      (sides.add_readers(tile), ...);
      if (thread < kSlots) shared.carried[thread] *= scales.inverse_total(thread);
      __syncthreads();  // nobody reads the tile any more
      carry_sums(shared, tile);
    }
  }
  __syncthreads();  // what is still to be multiplied is there
  (sides.finish(shared), ...);
}

// Of the splits from the second on; the last one begins with what comes after the sequence.
__device__ __forceinline__ bool is_last_split() {
  return blockIdx.y + 1 == gridDim.y;
}
__device__ __forceinline__ int64_t place_of_sums(const Backward& a) {
  return a.reading.place(int64_t{blockIdx.y} * gridDim.x + blockIdx.x);
}

template <int M>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_key_sums(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work, SplitSums to) {
  SharedArena arena;
  const Layout<M> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), slots = a.reading.slots;
  const int64_t after = a.reading.place(blockIdx.x);
  begin_scan(shared.scan, a, blockIdx.x, 1);
  if (thread < kSlots) {
    const bool given = is_last_split() && thread < slots;
    shared.carried[thread] = given ? a.dsums[after + thread] : 0.0f;
  }
  const auto load = [&](int64_t at, bool inside) { return TokenValues::load(work, at, inside); };
  const auto leave = [&](int row, const TokenValues& values) { values.leave(shared, row); };
  const auto pass = [&](const TileRows& tile, const SlotRows& normalizers) {
    pass_whole(shared, a, tile, normalizers);
  };
  Side<M, false> keys{shared.keys, 0, {}};
  Side<M, true> values{shared.values, 0, {}};
  keys.load(a, after, is_last_split());
  values.load(a, after, is_last_split());
  sum_back(a, work, shared, load, leave, pass, keys, values);
  keys.store(to.keys, a, place_of_sums(a));
  values.store(to.values, a, place_of_sums(a));
  if (thread < slots) to.sums[place_of_sums(a) + thread] = shared.carried[thread];
}

template <bool of_values>
__global__ __launch_bounds__(kTileThreads, 2) void slot_attention_fast_part_sums(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardWork work,
    const __grid_constant__ WidePart part, SplitSums to) {
  SharedArena arena;
  const PartLayout shared(arena);
  const int thread = static_cast<int>(threadIdx.x), slots = a.reading.slots;
  begin_scan(shared.scan, a, blockIdx.x, 1);
  if (thread < kSlots) shared.carried[thread] = 0;
  const auto load = [&](int64_t at, bool inside) { return inside ? part.offsets[at] : 0.0f; };
  const auto leave = [&](int row, float offset) { shared.side.offsets[row] = offset; };
  const auto pass = [&](const TileRows& tile, const SlotRows& normalizers) {
    pass_part<of_values>(shared, either<of_values>(a.reading.scale, a.dropout.row.keep), tile,
                         normalizers);
  };
  Side<kPart, of_values> side{shared.side, part.first, {}};
  side.load(a, a.reading.place(blockIdx.x), is_last_split());
  sum_back(a, work, shared, load, leave, pass, side);
  side.store(either<of_values>(to.keys, to.values), a, place_of_sums(a));
  if (thread < slots) to.sums[place_of_sums(a) + thread] += shared.carried[thread];
}

dim3 grid_of(const Backward& call, const BackwardWork& work) {
  dim3 grid = work.grid(call);
  grid.y -= 1;  // nobody continues the first split
  return grid;
}

template <bool of_values>
void run_part(const Backward& call, const BackwardWork& work, const WidePart& part,
              const SplitSums& to) {
  launch({"slot_attention_fast_part_sums", grid_of(call, work), kTileThreads,
          shared_bytes<PartLayout>()},
         slot_attention_fast_part_sums<of_values>, call, work, part, to);
}

}  // namespace

void run_key_sums(const Backward& call, const BackwardWork& work, const SplitSums& to) {
  if (call.given.are) return run_given_key_sums(call, work, to);
  with_width(call, [&](auto width) {
    constexpr int M = decltype(width)::value;
    launch({"slot_attention_fast_key_sums", grid_of(call, work), kTileThreads,
            shared_bytes<Layout<M>>()},
           slot_attention_fast_key_sums<M>, call, work, to);
  });
}

void run_part_sums(const Backward& call, const BackwardWork& work, bool values,
                   const WidePart& part, const SplitSums& to) {
  return values ? run_part<true>(call, work, part, to) : run_part<false>(call, work, part, to);
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
