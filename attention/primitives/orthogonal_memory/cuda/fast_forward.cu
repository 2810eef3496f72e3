// The forward pass of the orthogonal memory on tensor cores: one kernel, one pass over q, f; of
// whole segments the read alone, whose sums whole.h makes before.
//
// A block scans the chunks of one head. It makes of a chunk the projections P = Q B^T and C = F B^T
// in one reading of the basis, sums C along the chunk (scan.h), and
//   p = softmax(scale m * P),   Y = (p * m) B
// in the registers of the warp that has the tokens, where dropout also acts on p (dropout.h). The
// next chunk's q and f are copied meanwhile. The state passed from chunk to chunk is 2 r values,
// which also go to device memory for backward. Whole: those values are given. Where a row has
// segments, C is made for those that lie inside a chunk; where it has none, f is not looked at and
// the chunks are shared among blocks.
//
// Bytes per token and head, of width d and rank r: 6 d for q, f and y, 8 r / 64 for the sums;
// operations 6 d r. d = r = 64: 392 bytes, 24,600 operations, and some 190 KiB of a chunk through
// shared memory. Heads narrower than a tile (32, 64, 128) cost the operations of the tile. Causal
// sequences are not split: fewer heads of rows than a GPU has room for leave it idle in part.
// Whole, without segments: 4 d bytes, 4 d r operations, some 125 KiB of a chunk, besides the sums.
#include <algorithm>

#include "attention/primitives/orthogonal_memory/cuda/dropout.h"
#include "attention/primitives/orthogonal_memory/cuda/scan.h"

namespace linnet::cuda::orthogonal_memory_fast {
namespace {

constexpr int64_t kMinChunks = 4;  // of a run

template <int D>
struct Layout {
  static constexpr int kStride = D + kPadding;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : basis(arena.take<kernel_bf16>(size_t{D} * kStride)),
        q(arena.take<kernel_bf16>(size_t{2} * kChunk * kStride)),
        f(arena.take<kernel_bf16>(size_t{2} * kChunk * kStride)),
        sums(arena.take<float>(size_t{kChunk} * kStride)),
        flags(arena.take<uint32_t>(2 * kFlagWords)) {}
  kernel_bf16* basis;
  kernel_bf16 *q, *f;  // double-buffered
  float* sums;         // codes, then the tokens' reads
  uint32_t* flags;     // of two chunks, alternating
};

// Blocks per multiprocessor that registers are bounded for.
template <int D>
constexpr int kBlocks = D < 64    ? 4
                        : D < 128 ? 3
                                  : 1;

template <int D>
__global__ __launch_bounds__(kTileThreads, kBlocks<D>) void orthogonal_memory_fast_forward(
    const __grid_constant__ Forward a) {
  using Part = typename RunningSums<D>::Part;
  constexpr int kStride = Layout<D>::kStride;
  SharedArena arena;
  const Layout<D> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), head = static_cast<int>(blockIdx.x % heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T;
  const int chunks = static_cast<int>((time + kChunk - 1) / kChunk);
  const int64_t state = int64_t{blockIdx.x} * a.rank;
  const bool has_element = thread < a.rank;  // whole: of the sums

  const int first = static_cast<int>(blockIdx.y) * a.split.chunks;
  const int last = first + min(chunks - first, a.split.chunks);
  const bool reads_codes = a.reads_codes();

  AsyncCopies copies;
  TokenFlags flags;
  const auto begin = [&](int number) {
    const int64_t token = int64_t{number} * kChunk;
    const int on = number % 2 * kChunk * kStride;
    begin_copy<D>(copies, shared.q + on, {a.q, a.query_mask, row, token, head, 0});
    if (reads_codes) {
      begin_copy<D>(copies, shared.f + on, {a.f, a.code_mask, row, token, head, 0});
    }
    copies.commit();
    if (thread < kChunk) flags.load(a, row, token + thread);
  };

  load_basis<D>(a, head, shared.basis);
  RunningSums<D> sums{};
  if (!a.whole && a.completed != nullptr) {
    sums = {Part::load(a.completed + state, a.rank),
            Part::load(a.inclusive ? nullptr : a.partial + state, a.rank)};
  }
  TokenCounts counts{0, 0};
  if (!a.whole && a.counts != nullptr) {
    counts = {a.counts[2 * row], a.inclusive ? 0 : a.counts[2 * row + 1]};
  }
  const int64_t start = a.positions != nullptr ? a.positions[row * time] : a.time_offset;
  Chunk chunk{0, 0, 0, static_cast<int>(start % a.window), a.window, a.inclusive};
  const auto load_totals = [&](int number) {
    const int64_t entry = a.entry(row, chunks, number);
    const float* saved = a.saved.sums + (entry * heads + head) * 2 * a.rank + thread;
    if (has_element) sums = {{saved[0]}, {saved[a.rank]}};
    counts = {a.saved.counts[2 * entry], a.saved.counts[2 * entry + 1]};
  };
  if (!reads_codes) {  // all tokens read the same
    load_totals(0);
    if (thread < D) sums.fill(shared.sums + thread, kStride);
  }
  for (int number = first; number < last; ++number) {
    const int64_t token = int64_t{number} * kChunk;
    const int on = number % 2 * kChunk * kStride;
    if (a.whole && reads_codes) load_totals(number);
    uint32_t* words = shared.flags + number % 2 * kFlagWords;
    // As `first`, but recomputed: registers.
    if (number == static_cast<int>(blockIdx.y) * a.split.chunks) begin(number);
    copies.wait<0>();
    if (thread < kChunk) flags.publish(words, warp, lane);
    __syncthreads();  // this chunk is there; the other stage is free
    chunk.length = static_cast<int>(min(int64_t{kChunk}, time - token));
    chunk.read(words);
    if (number + 1 < last) begin(number + 1);

    ResultFragment queries[D / 8] = {};
    TokenRows<D> query_rows;
    if (D < 128 && reads_codes) {
      TokenRows<D> code_rows;
      code_rows.load(shared.f + on, warp, lane);
      query_rows.load(shared.q + on, warp, lane);
      project<D>(query_rows, code_rows, shared.basis, shared.sums, warp, lane, queries);
    } else {  // in two readings of the basis: registers
      if (D == 128 && reads_codes) {
        TokenRows<D> code_rows;
        code_rows.load(shared.f + on, warp, lane);
        project_codes<D>(code_rows, shared.basis, shared.sums, warp, lane);
      }
      query_rows.load(shared.q + on, warp, lane);
      project_queries<D>(query_rows, shared.basis, lane, queries);
    }
    __syncthreads();  // the codes are there
    if (!a.whole) {
      float* saved = a.saved.sums + (a.entry(row, chunks, number) * heads + head) * 2 * a.rank;
      Part::store(sums.completed, saved, a.rank, 0);
      Part::store(sums.partial, saved + a.rank, a.rank, 1);
      sums.scan(chunk, shared.sums);
      if (head == 0 && thread == 0) a.saved.phases[a.entry(row, chunks, number)] = chunk.phase;
    } else if (has_element && reads_codes) {
      sums.sum_segments(chunk, shared.sums + thread, kStride);
    }
    __syncthreads();  // the tokens' reads are there

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = warp * 16 + half * 8 + lane / 4;
      const int64_t seen = a.whole ? counts.seen_by_segment(chunk, t) : counts.seen_by(chunk, t);
      if (head == 0 && lane % 4 == 0 && t < chunk.length) a.tokens[row * time + token + t] = seen;
      weigh<D>(shared.sums, warp, lane, half, a.rank,
               seen > 0 ? 1 / static_cast<float>(seen) : 0.0f, a.scale, queries);
      if (a.drops) drop<D>(a, row, token + t, head, lane, half, queries);
    }
    ResultFragment y[D / 8] = {};
    expand<D>(queries, shared.basis, lane, y);
    store_rows<D>(y, shared.q + on + warp * 16 * kStride, kStride, lane,
                  {a.y, a.query_mask, row, token + warp * 16, head, 0});
    if (a.whole) continue;
    counts.advance(chunk);
    chunk.phase = chunk.length - chunk.window_begin(chunk.length);
  }
  if (a.whole) return;
  Part::store(sums.completed, a.completed_out + state, a.rank, 0);
  Part::store(sums.partial, a.partial_out + state, a.rank, 1);
  if (head == 0 && thread == 0) {
    a.counts_out[2 * row] = counts.completed;
    a.counts_out[2 * row + 1] = counts.partial;
  }
}

}  // namespace

bool has_kernels(int64_t width, int64_t rank) {
  return width > 0 && width <= 128 && width % 8 == 0 && rank > 0 && rank <= width;
}

size_t forward_shared_memory(int64_t width) {
  return with_tile<128>(width,
                        [](auto tile) { return shared_bytes<Layout<decltype(tile)::value>>(); });
}

ChunkRuns chunk_runs(int64_t blocks, int64_t tokens, int64_t slots, int64_t state_eighths) {
  const int64_t chunks = std::max<int64_t>(1, (tokens + kChunk - 1) / kChunk);
  ChunkRuns best{1, static_cast<int>(chunks)};
  const auto waves = [&](int64_t runs) { return (blocks * runs + slots - 1) / slots; };
  // Of whole waves of blocks, in eighths of a chunk's time; a run reads the chunk before it once
  // more. Nobody begins with what the last run leaves.
  int64_t least = 8 * waves(1) * (chunks + 1);
  const int64_t most = std::max<int64_t>(1, 4 * slots / std::max<int64_t>(1, blocks));
  for (int64_t wanted = 2; wanted <= std::min(most, chunks / kMinChunks); ++wanted) {
    const int64_t run = (chunks + wanted - 1) / wanted, runs = (chunks + run - 1) / run;
    const int64_t time = (8 * waves(runs) + state_eighths * waves(runs - 1)) * (run + 1);
    if (time >= least) continue;
    least = time;
    best = {static_cast<int>(runs), static_cast<int>(run)};
  }
  return best;
}

void forward(const Forward& call) {
  with_tile<128>(call.q.K, [&](auto tile) {
    constexpr int D = decltype(tile)::value;
    launch({"orthogonal_memory_fast_forward",
            dim3(blocks_for(call.q.B * call.q.H, 1), static_cast<unsigned>(call.split.runs)),
            kTileThreads, shared_bytes<Layout<D>>()},
           orthogonal_memory_fast_forward<D>, call);
  });
}

}  // namespace linnet::cuda::orthogonal_memory_fast
