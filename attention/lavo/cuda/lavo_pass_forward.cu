// Causal LAVO's forward pass on tensor cores: one kernel, one pass over q, k and v.
//
// A block scans the chunks of 64 tokens of one head. The chunk's keys and values and those of the
// chunk before lie in shared memory: windows reach no further. A warp has 16 tokens. It makes the
// window's output f in registers, square by square of 16 keys (streaming softmax), and f goes on
// from there: projected on the basis it enters the memory, and half of it is half of y. The read
// from the memory is made as in orthogonal_memory/cuda/fast_forward.cu. While a chunk's memory is
// computed, the next chunk's keys and values take the place of the chunk's before.
//
// Dropout acts on the window's weights (lavo_pass_dropout.h) and on those with which the memory is
// read (orthogonal_memory/cuda/dropout.h).
//
// Results go to device memory by way of the warp's own rows of the sums, so that queries need one
// stage. At 128 columns a block takes 153 KiB: one fills a multiprocessor, also where it may have
// 163 KiB (sm_80).
//
// Bytes per token and head of width d and rank r: 8 d for q, k, v and y, 8 r / 64 for the sums;
// where gradients are wanted 2 d + 4 more. Operations: 4 d times the 16 to 80 keys of the squares
// that a query's window w touches, and 6 d r. d = r = 64, w = 16: 520 bytes (652), 32,800
// operations, and some 250 KiB of a chunk through shared memory. d = r = 128: 1040 bytes (1300),
// 114,700 operations and some 720 KiB (752), of which the basis, read three times by every warp, is
// 384.
//
// Where heads of rows do not fill a GPU, sequences are cut into runs of chunks, so many that blocks
// make whole waves (chunk_runs). What each run adds to the memory is summed before by the same
// kernel without its reads; the sums before each run are added up in order (start_runs).
#include "attention/lavo/cuda/lavo_pass_dropout.h"
#include "attention/lavo/cuda/lavo_pass_tiles.h"
#include "attention/primitives/orthogonal_memory/cuda/dropout.h"

namespace linnet::cuda::lavo_pass_fast {
namespace {

using LavoForward = lavo_pass_fast::Forward;

template <int D>
struct Layout {
  static constexpr int kStride = D + kPadding;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : basis(arena.take<kernel_bf16>(size_t{D} * kStride)),
        q(arena.take<kernel_bf16>(size_t{kChunk} * kStride)),
        k(arena.take<kernel_bf16>(size_t{2} * kChunk * kStride)),
        v(arena.take<kernel_bf16>(size_t{2} * kChunk * kStride)),
        sums(arena.take<float>(size_t{kChunk} * kStride)),
        bias(arena.take<float>(kWidestWindow)),
        factors(arena.take<float>(kChunk)),
        flags(arena.take<uint32_t>(2 * kFlagWords)) {}
  kernel_bf16* basis;
  kernel_bf16* q;
  kernel_bf16 *k, *v;  // this chunk's and those of the one before, or the one after
  float* sums;         // codes, then the tokens' reads; a warp's results on their way out
  float* bias;         // by distance, in units of log 2
  float* factors;      // 1 over the tokens in the memory that each token reads; 0: none
  uint32_t* flags;     // of two chunks, alternating
};

// Softmax over the keys seen so far, of row lane / 4 and of the row 8 after.
struct Streaming {
  float largest[2] = {kNothing, kNothing}, total[2] = {0, 0};

  // Logits [16,16], in units of log 2, become weights; earlier sums are to be multiplied by the
  // result.
  __device__ __forceinline__ float add(ResultFragment (&logits)[2], int half) {
    float most = largest[half];
#pragma unroll
    for (int i = 0; i < 4; ++i) most = fmaxf(most, logits[i / 2].values[2 * half + i % 2]);
    most = largest_of_row(most);
    const float shift = most == kNothing ? 0.0f : most;
    const float keep = fast_exp2(largest[half] - shift);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& weight = logits[i / 2].values[2 * half + i % 2];
      weight = fast_exp2(weight - shift);
      sum += weight;
    }
    total[half] = total[half] * keep + sum_of_row(sum);
    largest[half] = most;
    return keep;
  }
};

// The window's output of a warp's tokens and the log-sum-exp of their logits; 0 and +infinity for
// tokens that do not count. The chunk's keys are `on` in the tiles, those of the chunk before
// `before`.
template <int D>
__device__ __forceinline__ void attend(const TokenRows<D>& queries, const Layout<D>& shared,
                                       int64_t on, int64_t before, const Chunk& chunk,
                                       const Sight& sight, const WindowDraws& draws, int warp,
                                       int lane, ResultFragment (&f)[D / 8],
                                       float (&log_sum_exp)[2]) {
  constexpr int kStride = Layout<D>::kStride;
  Streaming streaming;
  const int t[2] = {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8};
  const int reach[2] = {sight.reach(chunk, t[0]), sight.reach(chunk, t[1])};
  const float scale = draws.in.scale * kLog2E;
  const int begin = max(sight.history, warp * 16 - chunk.window + 1) >> 4;
#pragma unroll 1
  for (int square = begin; square <= warp; ++square) {
    const int64_t rows = (square < 0 ? before : on) + (square & 3) * 16 * kStride;
    const uint32_t kept = draws.in.drops ? draws.of_queries(warp * 16, square * 16, lane) : 0;
    ResultFragment logits[2] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments keys = load_right_transposed(shared.k + rows + i * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(queries.parts[i], keys.halves[half], logits[half]);
      }
    }
    const uint32_t counted = sight.counted_in(chunk, square) >> lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int half = i % 4 / 2, column = i / 4 * 8 + i % 2;
      const int distance = t[half] - (square * 16 + lane % 4 * 2 + column);
      float& logit = logits[i / 4].values[i % 4];
      const bool seen = Sight::reaches(distance, reach[half]) & ((counted >> column & 1) != 0);
      logit = scale * logit + shared.bias[seen ? distance : 0];
      if (!seen) logit = kNothing;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float keep = streaming.add(logits, half);
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        f[j].values[2 * half] *= keep;
        f[j].values[2 * half + 1] *= keep;
      }
    }
    if (draws.in.drops) WindowDraws::drop(kept, 1.0f, logits);
    const LeftFragment weights = as_left(logits[0], logits[1]);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      const RightFragments values = load_right(shared.v + rows + j * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply(weights, values.halves[half], f[2 * j + half]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool counts = sight.counts(chunk, t[half]);  // then it sees itself
    const float norm = counts ? draws.dropout.keep * reciprocal(streaming.total[half]) : 0.0f;
    const float log_sum = streaming.largest[half] * kLogOf2 + fast_log(streaming.total[half]);
    log_sum_exp[half] = counts ? log_sum : -kNothing;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      f[j].values[2 * half] *= norm;
      f[j].values[2 * half + 1] *= norm;
    }
  }
}

// y = share f + y / 2, f as a left operand.
template <int D>
__device__ __forceinline__ void combine(const TokenRows<D>& f, const float (&shares)[2],
                                        ResultFragment (&y)[D / 8]) {
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = f.parts[j / 2].words[j % 2 * 2 + half];
      float* values = y[j].values + 2 * half;
      values[0] = shares[half] * low_of(pair) + 0.5f * values[0];
      values[1] = shares[half] * high_of(pair) + 0.5f * values[1];
    }
  }
}

// Blocks per multiprocessor that registers are bounded for.
template <int D>
constexpr int kBlocks = D < 64    ? 4
                        : D < 128 ? 2
                                  : 1;

// A run of a sequence. sums_only: what it adds to the memory, and nothing else.
template <int D, bool sums_only>
__global__ __launch_bounds__(kTileThreads, kBlocks<D>) void lavo_pass_forward(LavoForward call) {
  using Part = typename RunningSums<D>::Part;
  constexpr int kStride = Layout<D>::kStride;
  SharedArena arena;
  const Layout<D> shared(arena);
  const orthogonal_memory_fast::Forward& a = call.memory;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), head = static_cast<int>(blockIdx.x % heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T, chunks = (time + kChunk - 1) / kChunk;
  const int64_t first = int64_t{blockIdx.y} * a.split.chunks;
  const int64_t last = min(chunks, first + a.split.chunks);
  // Of the run, and of its head.
  const int64_t run_row = int64_t{blockIdx.y} * a.q.B + row;
  const int64_t run_state = (run_row * heads + head) * a.rank;

  AsyncCopies copies;
  TokenFlags flags;
  const auto begin = [&](int64_t number) {
    const int64_t token = number * kChunk, on = number % 2 * kChunk * kStride;
    begin_copy<D>(copies, shared.q, {a.q, a.query_mask, row, token, head, 0});
    begin_copy<D>(copies, shared.k + on, {call.k, a.query_mask, row, token, head, 0});
    begin_copy<D>(copies, shared.v + on, {call.v, a.query_mask, row, token, head, 0});
    copies.commit();
    if (thread < kChunk) flags.load(a, row, token + thread);
  };

  // A warp's rows of the sums, which no other looks at but between codes and the tokens' reads.
  auto* const own = reinterpret_cast<kernel_bf16*>(shared.sums + warp * 16 * kStride);
  if (first > 0) {  // windows reach into the chunk before
    const int64_t token = (first - 1) * kChunk, on = (first - 1) % 2 * kChunk * kStride;
    begin_copy<D>(copies, shared.k + on, {call.k, a.query_mask, row, token, head, 0});
    begin_copy<D>(copies, shared.v + on, {call.v, a.query_mask, row, token, head, 0});
    if (thread < kChunk) {
      flags.load(a, row, token + thread);
      flags.publish(shared.flags + (first - 1) % 2 * kFlagWords, warp, lane);
    }
  }
  begin(first);
  load_basis<D>(a, head, shared.basis);
  load_bias(call.bias, call.bias_heads, head, a.window, shared.bias);
  RunningSums<D> sums{};
  TokenCounts counts{0, 0};
  if (!sums_only && a.completed != nullptr) {
    sums = {Part::load(a.completed + run_state, a.rank), Part::load(a.partial + run_state, a.rank)};
    counts = {a.counts[2 * run_row], a.counts[2 * run_row + 1]};
  }
  const int64_t start =
      (a.positions != nullptr ? a.positions[row * time] : a.time_offset) + first * kChunk;
  Chunk chunk{0, 0, 0, static_cast<int>(start % a.window), a.window, false};
  Sight sight{0, 0};
  for (int64_t number = first; number < last; ++number) {
    const int64_t token = number * kChunk, on = number % 2 * kChunk * kStride;
    uint32_t* words = shared.flags + number % 2 * kFlagWords;
    copies.wait<0>();
    if (thread < kChunk) flags.publish(words, warp, lane);
    __syncthreads();  // this chunk is there
    if (number == first && first > 0) {
      chunk.read(shared.flags + (number - 1) % 2 * kFlagWords);
      sight.counted_before = chunk.counted;
      sight.history = -kChunk;
    }
    chunk.length = static_cast<int>(min(int64_t{kChunk}, time - token));
    chunk.read(words);

    ResultFragment queries[D / 8] = {};
    TokenRows<D> local;
    {
      TokenRows<D> query_rows;
      ResultFragment f[D / 8] = {};
      float log_sum_exp[2];
      query_rows.load(shared.q, warp, lane);
      attend<D>(query_rows, shared, on, kChunk * kStride - on, chunk, sight,
                {call.dropout, a, row, token, head}, warp, lane, f, log_sum_exp);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) local.parts[i] = as_left(f[2 * i], f[2 * i + 1]);
      if (!sums_only && call.log_sum_exp != nullptr) {
        store_rows<D>(f, own, kStride, lane,
                      {call.local, a.query_mask, row, token + warp * 16, head, 0});
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t t = token + warp * 16 + half * 8 + lane / 4;
          if (lane % 4 != 0 || t >= time) continue;
          call.log_sum_exp[(row * time + t) * heads + head] = log_sum_exp[half];
        }
        __syncwarp();  // codes take the place of f
      }
      if constexpr (sums_only) {
        project_codes<D>(local, shared.basis, shared.sums, warp, lane);
      } else if constexpr (D < 128) {
        project<D>(query_rows, local, shared.basis, shared.sums, warp, lane, queries);
      } else {  // in two readings of the basis: registers
        project_codes<D>(local, shared.basis, shared.sums, warp, lane);
        project_tile<D>(shared.q, shared.basis, warp, lane, queries);
      }
    }
    __syncthreads();  // the codes are there; nobody reads the queries and the keys before
    if (number + 1 < last) begin(number + 1);
    if constexpr (!sums_only) {
      float* saved = a.saved.sums + ((row * chunks + number) * heads + head) * 2 * a.rank;
      Part::store(sums.completed, saved, a.rank, 0);
      Part::store(sums.partial, saved + a.rank, a.rank, 1);
      if (head == 0 && thread == 0) a.saved.phases[row * chunks + number] = chunk.phase;
    }
    sums.scan(chunk, shared.sums);
    if (!sums_only && thread < kChunk) {
      const int t = thread;
      const int64_t seen = counts.seen_by(chunk, t);
      shared.factors[t] = seen > 0 ? 1 / static_cast<float>(seen) : 0.0f;
      if (head == 0 && t < chunk.length) a.tokens[row * time + token + t] = seen;
    }
    if constexpr (!sums_only) {
      __syncthreads();  // the tokens' reads are there

      float shares[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = warp * 16 + half * 8 + lane / 4;
        const float factor = shared.factors[t];
        shares[half] = factor == 0 && call.local_only ? 1.0f : 0.5f;
        weigh<D>(shared.sums, warp, lane, half, a.rank, factor, a.scale, queries);
        if (a.drops) drop<D>(a, row, token + t, head, lane, half, queries);
      }
      ResultFragment y[D / 8] = {};
      expand<D>(queries, shared.basis, lane, y);
      combine<D>(local, shares, y);
      store_rows<D>(y, own, kStride, lane, {a.y, a.query_mask, row, token + warp * 16, head, 0});
    }
    sight.counted_before = chunk.counted;
    sight.history = max(chunk.segment_begin(kChunk - 1), 0) - kChunk;
    counts.advance(chunk);
    chunk.phase = chunk.length - chunk.window_begin(chunk.length);
  }
  if (!sums_only && last < chunks) return;
  const int64_t to_row = sums_only ? run_row : row;
  const int64_t to = (to_row * heads + head) * a.rank;
  Part::store(sums.completed, a.completed_out + to, a.rank, 0);
  Part::store(sums.partial, a.partial_out + to, a.rank, 1);
  if (head == 0 && thread == 0) {
    a.counts_out[2 * to_row] = counts.completed;
    a.counts_out[2 * to_row + 1] = counts.partial;
  }
}

template <bool sums_only>
void run(const LavoForward& call, int64_t runs) {
  with_tile<128>(call.memory.q.K, [&](auto tile) {
    constexpr int D = decltype(tile)::value;
    launch({"lavo_pass_forward",
            dim3(blocks_for(call.memory.q.B * call.memory.q.H, 1), static_cast<unsigned>(runs)),
            kTileThreads, shared_bytes<Layout<D>>()},
           lavo_pass_forward<D, sums_only>, call);
  });
}

}  // namespace

size_t shared_memory(int64_t width) {
  return with_tile<128>(width,
                        [](auto tile) { return shared_bytes<Layout<decltype(tile)::value>>(); });
}

int64_t forward_blocks(int64_t width) {
  return with_tile<128>(width, [](auto tile) { return kBlocks<decltype(tile)::value>; });
}

void forward(const LavoForward& call) {
  run<false>(call, call.memory.split.runs);
}

void sum_runs(const LavoForward& call) {
  run<true>(call, call.memory.split.runs - 1);
}

}  // namespace linnet::cuda::lavo_pass_fast
