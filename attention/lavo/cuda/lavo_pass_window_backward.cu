// The backward pass of LAVO's window on tensor cores: one kernel, one pass backward in time.
//
// A block scans the chunks of 64 tokens of one head, or of a run of them, with the keys and values
// of a chunk and of the one before in shared memory. With S the logits, P = exp(S - log-sum-exp),
// dP = dF V^T and dS = P (dP - dF . f), a warp makes, from logits computed twice,
//   of its 16 queries  dQ += dS K,
//   of its 16 keys     dV = P^T dF,   dK = dS^T Q.
// The factors of dropout on P go to dP and, for dV, to P (lavo_pass_dropout.h); draws are made as
// often as logits. Queries of the chunk after also see a chunk's keys: their part of dK and dV is
// made when that chunk is at hand, and stays in the warp's registers until the next one is. A run
// begins with that part of the chunk after it, so that runs share no sums. Gradients of the bias
// are summed in shared memory by places in squares of 16 x 16, and by distance at the end.
//
// Where blocks that share a multiprocessor have room for two stages of tiles, the next queries and
// keys are copied while a chunk is computed, and two barriers a chunk do: its tiles and flags are
// there; its statistics are. With one stage there is a third, after which the tiles are filled
// again, and everybody waits for them. Two stages take 108 KiB at 64 columns and windows of 16; up
// to windows of 33 two such blocks share a multiprocessor of sm_90 (at 32 columns three, up to
// windows of 49), with wider ones, or on sm_80, only blocks of one stage do.
//
// At 128 columns dK and dV together are too many registers. A block has eight warps, two teams: one
// makes dV, which needs no dP, and dQ, the other dK; logits are computed three times. One such
// block fills a multiprocessor, with two stages where it can have 226 KiB of shared memory, with
// one where it has 163 KiB (sm_80).
//
// Bytes per token and head of width d: 16 d + 8 for q, k, v, df and dq, dq, dk, dv, the log-sum-exp
// and dF . f; operations 14 d (at 128 columns 16 d) times the 16 to 80 keys of the squares that a
// window touches. d = 64, w = 16: 1032 bytes and 28,700 operations. d = 128: 2056 bytes, 65,500
// operations and some 600 KiB of a chunk through shared memory.

#include "attention/lavo/cuda/lavo_pass_window_gradients.h"

namespace linnet::cuda::lavo_pass_fast {
namespace {

// Blocks per multiprocessor that registers are bounded for.
template <int D>
constexpr int kBlocks = D < 64    ? 3
                        : D < 128 ? 2
                                  : 1;

template <int D>
__global__ __launch_bounds__(Warps<D>::kThreads,
                             kBlocks<D>) void lavo_pass_window_backward(WindowBackward call,
                                                                        int stages) {
  constexpr int kStride = Layout<D>::kStride;
  const Inputs& a = call.memory;
  SharedArena arena;
  const Layout<D> shared(arena, a.window, stages);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = thread / 32 % 4, team = thread / 32 / 4;
  const bool has_dv = !kTwoTeams<D> || team == 0, has_dk = !kTwoTeams<D> || team == 1;
  const int heads = static_cast<int>(a.q.H), head = static_cast<int>(blockIdx.x % heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T;
  const int chunks = static_cast<int>((time + kChunk - 1) / kChunk);
  const int from = static_cast<int>(blockIdx.y) * call.run_chunks;
  const int to = min(chunks, from + call.run_chunks);

  AsyncCopies copies;
  TokenFlags flags;
  Statistics statistics{};
  const auto begin_keys = [&](int number) {
    const int at = Layout<D>::place_of_keys(number, stages);
    const int64_t token = int64_t{number} * kChunk;
    begin_copy<D, Warps<D>>(copies, shared.k + at, {call.k, a.query_mask, row, token, head, 0});
    begin_copy<D, Warps<D>>(copies, shared.v + at, {call.v, a.query_mask, row, token, head, 0});
  };
  // A chunk's queries, and the keys before them.
  const auto begin = [&](int number) {
    const int at = Layout<D>::place_of_queries(number, stages);
    const int64_t token = int64_t{number} * kChunk;
    begin_copy<D, Warps<D>>(copies, shared.q + at, {a.q, a.query_mask, row, token, head, 0});
    begin_copy<D, Warps<D>>(copies, shared.df + at, {call.df, a.query_mask, row, token, head, 0});
    if (number > 0) begin_keys(number - 1);
    if (thread < kChunk) statistics.load(call, row, token + thread, head);
    // Warps 2 and 3 have the tokens of the chunk before.
    flags = {};
    if (thread < kChunk || (thread < 2 * kChunk && number > 0)) {
      flags.load(a, row, token + (thread < kChunk ? thread : thread - 2 * kChunk));
    }
  };

  for (int i = thread; i < 4 * square_distances(a.window) * 256; i += Warps<D>::kThreads) {
    shared.dbias[i] = 0;
  }
  load_bias(call.bias, call.bias_heads, head, a.window, shared.bias);
  const int last = to == chunks ? to - 1 : to;
  if (last < to) begin_keys(last);
  begin(last);
  copies.commit();
  // Gradients from later chunks for a warp's keys: dV and dK, or that of them which its team makes.
  ResultFragment waiting[kTwoTeams<D> ? 1 : 2][D / 8] = {};
  auto& dv = waiting[0];  // of two teams the same as dk
  auto& dk = waiting[kTwoTeams<D> ? 0 : 1];
  Chunk chunk{0, 0, 0, 0, a.window, false};
  Sight sight{0, 0};
  for (int number = last; number >= from; --number) {
    const int64_t token = int64_t{number} * kChunk;
    const auto first = [&] { return int64_t{number} * kChunk + warp * 16; };
    const auto chunk_number = static_cast<unsigned>(number), after = chunk_number + stages;
    const Places places{Layout<D>::place_of_queries(chunk_number, stages),
                        Layout<D>::place_of_keys(chunk_number, stages),
                        Layout<D>::place_of_keys(after, stages)};
    kernel_bf16* own = shared.dq + warp * 16 * kStride;
    copies.wait<0>();
    if (thread < 2 * kChunk) {
      flags.publish(shared.flags + thread / kChunk * kFlagWords, warp % 2, lane);
    }
    __syncthreads();  // this chunk and the keys before it are there; nobody reads the one after
    // What is copied while the chunk is computed. Without teams dK and dV leave by way of the rows
    // that are copied here, so that copies begin later.
    const auto begin_next = [&] {
      if (has_dv && number < to) {
        begin_own_rows<D>(copies, own, lane, {call.memory_dq, a.query_mask, row, first(), head, 0});
      }
      copies.commit();
      if (stages > 1 && number > from) begin(number - 1);
      copies.commit();
    };
    Chunk earlier = chunk;
    earlier.read(shared.flags + kFlagWords);
    chunk.read(shared.flags);
    chunk.length = static_cast<int>(min(int64_t{kChunk}, time - token));
    sight.counted_before = earlier.counted;
    sight.history = number > 0 ? max(highest_bit(earlier.firsts), 0) - kChunk : 0;
    if (thread < kChunk) {
      shared.log_sum_exp[thread] = kLog2E * statistics.log_sum_exp;
      shared.along[thread] = statistics.df_dot_f;
      shared.reaches[thread] = sight.reach(chunk, thread);
    }
    __syncthreads();  // the tokens' statistics are there
    if constexpr (kTwoTeams<D>) begin_next();

    const WindowDraws draws{call.dropout, a, row, token, head};
    const auto add_to_keys = [&](int shift) {
      if constexpr (!kTwoTeams<D>) {
        through_keys<D, true, true>(shared, places, shift, chunk, sight, draws, warp, lane, dk, dv);
      } else if (has_dv) {
        through_keys<D, false, true>(shared, places, shift, chunk, sight, draws, warp, lane, dk,
                                     dv);
      } else {
        through_keys<D, true, false>(shared, places, shift, chunk, sight, draws, warp, lane, dk,
                                     dv);
      }
    };
    if (number < to) {  // keys first: their sums leave the registers
      add_to_keys(0);
      kernel_bf16* out = shared.out + thread / 32 * 16 * Layout<D>::kOutStride;
      const float factor = has_dk ? a.scale : call.dropout.keep;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          dk[j].values[i] *= factor;
          if constexpr (!kTwoTeams<D>) dv[j].values[i] *= call.dropout.keep;
        }
      }
      store_keys<D>(dk, out, lane,
                    {has_dk ? call.dk : call.dv, a.query_mask, row, first(), head, 0});
      if (!kTwoTeams<D>) {
        store_keys<D>(dv, out, lane, {call.dv, a.query_mask, row, first(), head, 0});
        __syncwarp();  // they have left
      }
    }
    if constexpr (!kTwoTeams<D>) begin_next();
    if (number < to) {
      if (has_dv) {
        ResultFragment dq[D / 8] = {};
        through_queries<D>(shared, places, chunk, sight, draws, warp, lane, dq);
        copies.wait<1>();
        __syncwarp();  // the memory's part of them is there
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t pair = packed_at<D>(own, lane, half, j);
            float* values = dq[j].values + 2 * half;
            values[0] = a.scale * values[0] + low_of(pair);
            values[1] = a.scale * values[1] + high_of(pair);
          }
        }
        store_rows<D>(dq, own, kStride, lane, {call.dq, a.query_mask, row, first(), head, 0});
      }
#pragma unroll
      for (int j = 0; j < D / 8; ++j) dk[j] = dv[j] = {};
    }
    if (number > from) add_to_keys(-kChunk);
    if (stages > 1) continue;
    __syncthreads();  // nobody reads the tiles any more
    if (number > from) begin(number - 1);
    copies.commit();
  }
  if (call.dbias == nullptr) return;
  const int64_t run = static_cast<int64_t>(blockIdx.y) * a.q.B + row;
  __syncthreads();  // the sums of all warps are there
  store_bias(shared.dbias, a.window, call.dbias + (run * heads + head) * (2 * a.window - 1));
}

// How many stages of tiles fit as many blocks.
template <int D>
int stages_of(int64_t window) {
  constexpr size_t kReserved = 1024;  // of each block
  const size_t room = (shared_memory_limit() + kReserved) / kBlocks<D> - kReserved;
  return shared_bytes<Layout<D>>(window, 2) <= room ? 2 : 1;
}

}  // namespace

size_t window_backward_shared_memory(int64_t width, int64_t window) {
  return with_tile<128>(width, [&](auto tile) {
    constexpr int D = decltype(tile)::value;
    return shared_bytes<Layout<D>>(window, stages_of<D>(window));
  });
}

int64_t window_backward_blocks(int64_t width) {
  return with_tile<128>(width, [](auto tile) { return kBlocks<decltype(tile)::value>; });
}

void plan_runs(WindowBackward& call) {
  using namespace orthogonal_memory_fast;
  const int64_t slots = window_backward_blocks(call.memory.q.K) * kMultiprocessors;
  const ChunkRuns split = chunk_runs(call.memory.q.B * call.memory.q.H, call.memory.q.T, slots);
  call.run_chunks = split.chunks;
  call.runs = split.runs;
}

void window_backward(const WindowBackward& call) {
  with_tile<128>(call.memory.q.K, [&](auto tile) {
    constexpr int D = decltype(tile)::value;
    const int stages = stages_of<D>(call.memory.window);
    launch(
        {"lavo_pass_window_backward",
         dim3(blocks_for(call.memory.q.B * call.memory.q.H, 1), static_cast<unsigned>(call.runs)),
         Warps<D>::kThreads, shared_bytes<Layout<D>>(call.memory.window, stages)},
        lavo_pass_window_backward<D>, call, stages);
  });
}

}  // namespace linnet::cuda::lavo_pass_fast
