// The backward pass of LAVO's window on tensor cores: one kernel, one pass backward in time.
//
// A block walks along the chunks of 64 tokens of one head, or of a run of them, with the keys and
// values of a chunk and of the one before in shared memory. With S the logits, P = exp(S - log-sum-
// exp), dP = dF V^T and dS = P (dP - dF . f), a warp makes, from logits computed twice,
//   of its 16 queries  dQ += dS K,
//   of its 16 keys     dV = P^T dF,   dK = dS^T Q.
// Queries of the chunk after also see a chunk's keys: their part of dK and dV is made when that
// chunk is at hand, and stays in the warp's registers until the next one is. A run begins with that
// part of the chunk after it, so that runs share no sums. Gradients of the bias are summed in
// shared memory by places in squares of 16 x 16, and by distance at the end.
//
// At 128 columns dK and dV together are too many registers. A block has eight warps, two teams: one
// makes dV, which needs no dP, and dQ, the other dK; logits are computed three times. One such
// block fills a multiprocessor, so that no other one computes while it waits for copies: where a
// block can have 209 KiB of shared memory, q, dF and dq have two stages of tiles and are copied
// while a chunk is computed; where it has 163 KiB (sm_80) they have one, as narrower heads, of
// which two blocks fit. Keys and values always wait for the end of a chunk.
//
// Bytes a token and head of width d: 16 d + 8 for q, k, v, df and dq, dq, dk, dv, the log-sum-exp
// and dF . f; operations 14 d (at 128 columns 16 d) times the 16 to 80 keys of the squares that a
// window touches. d = 64, w = 16: 1032 bytes and 28,700 operations. Predicted, never measured: for
// batch 16, 12 heads, 8192 tokens on an H200, 338 us at 4.8 TB/s (378 us at the 4.3 that a copy
// reaches) and 122 us of tensor cores at 370 TFLOP/s, so that memory bounds it.
// d = 128: 2056 bytes, 65,500 operations and some 600 KiB of a chunk through shared memory. For 6
// heads of those tokens 337 us at 4.8 TB/s (376 us), 139 us of tensor cores and 255 us of shared
// memory at 128 bytes a clock; the copies of keys and values, a quarter of the bytes, are not
// hidden.
#include <algorithm>

#include "attention/lavo/cuda/lavo_pass_tiles.h"

namespace linnet::cuda::lavo_pass_fast {
namespace {

constexpr int64_t kEnoughBlocks = 264;  // two for each multiprocessor of an H200
constexpr int64_t kFewestChunks = 4;    // of a run

// Distances between squares of keys and squares of queries that see them, from 0.
__host__ __device__ inline int square_distances(int64_t window) {
  return static_cast<int>((window + 14) / 16) + 1;
}

template <int D>
using Warps = Team < D<128 ? 4 : 8, kChunk>;

template <int D>
struct Layout {
  static constexpr int kStride = D + kPadding;
  static constexpr size_t kTile = size_t{kChunk} * kStride;
  static constexpr int kOutColumns = D < 64 ? D : 64;
  static constexpr int kOutStride = kOutColumns + kPadding;
  __host__ __device__ Layout(SharedArena& arena, int64_t window, int stages)
      : q(arena.take<kernel_bf16>(stages * kTile)),
        df(arena.take<kernel_bf16>(stages * kTile)),
        dq(arena.take<kernel_bf16>(stages * kTile)),
        out(arena.take<kernel_bf16>(size_t{Warps<D>::kWarps} * 16 * kOutStride)),
        k(arena.take<kernel_bf16>(2 * kTile)),
        v(arena.take<kernel_bf16>(2 * kTile)),
        dbias(arena.take<float>(static_cast<size_t>(4 * square_distances(window)) * 256)),
        bias(arena.take<float>(kWidestWindow)),
        log_sum_exp(arena.take<float>(kChunk)),
        along(arena.take<float>(kChunk)),
        first_keys(arena.take<int>(kChunk)),
        flags(arena.take<uint32_t>(2 * kFlagWords)) {}
  kernel_bf16 *q, *df, *dq;  // stages by turns
  kernel_bf16* out;          // of each warp: dK and dV on their way out, so many columns at a time
  kernel_bf16 *k, *v;        // of two chunks by turns
  float* dbias;              // of each warp, [distance between squares][8][32 lanes]
  float* bias;               // by distance
  float *log_sum_exp, *along;
  int* first_keys;
  uint32_t* flags;  // of the chunk and of the one before
};

// A square of 16 rows and 16 columns, of which one side is queries and the other keys: logits x
// become P, their gradients dP become dS. place(i) is the chunk's query and key of number i.
template <int D, typename Place>
__device__ __forceinline__ void through_soft_max(const Layout<D>& shared, const Chunk& chunk,
                                                 const Sight& sight, float scale,
                                                 const Place& place, ResultFragment (&x)[2],
                                                 ResultFragment (&dx)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    int t, key;
    place(i, t, key);
    float& weight = x[i / 4].values[i % 4];
    float& gradient = dx[i / 4].values[i % 4];
    const bool seen = key <= t && key >= shared.first_keys[t] && sight.counts(chunk, key);
    weight = seen ? __expf(scale * weight + shared.bias[t - key] - shared.log_sum_exp[t]) : 0.0f;
    gradient = weight * (gradient - shared.along[t]);
  }
}

// Where a chunk is in the tiles: its queries, its keys, and the keys before them.
struct Places {
  int64_t queries, keys, before;
};

// dQ of a warp's queries, and what the bias gets from them.
template <int D>
__device__ __forceinline__ void through_queries(const Layout<D>& shared, const Places& places,
                                                const Chunk& chunk, const Sight& sight, float scale,
                                                int warp, int lane, ResultFragment (&dq)[D / 8]) {
  constexpr int kStride = Layout<D>::kStride;
  TokenRows<D> queries, outputs;
  queries.load(shared.q + places.queries, warp, lane);
  outputs.load(shared.df + places.queries, warp, lane);
  float* dbias = shared.dbias + warp * square_distances(chunk.window) * 256 + lane;
#pragma unroll 1
  for (int square = max(sight.history, warp * 16 - chunk.window + 1) >> 4; square <= warp;
       ++square) {
    const int64_t rows = (square < 0 ? places.before : places.keys) + (square & 3) * 16 * kStride;
    ResultFragment x[2] = {}, dx[2] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments keys = load_right_transposed(shared.k + rows + i * 16, kStride, lane);
      const RightFragments values = load_right_transposed(shared.v + rows + i * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(queries.parts[i], keys.halves[half], x[half]);
        multiply(outputs.parts[i], values.halves[half], dx[half]);
      }
    }
    through_soft_max<D>(
        shared, chunk, sight, scale,
        [&](int i, int& t, int& key) {
          t = warp * 16 + i % 4 / 2 * 8 + lane / 4;
          key = square * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        },
        x, dx);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      dbias[(warp - square) * 256 + i * 32] += dx[i / 4].values[i % 4];
    }
    const LeftFragment gradients = as_left(dx[0], dx[1]);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      const RightFragments keys = load_right(shared.k + rows + j * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply(gradients, keys.halves[half], dq[2 * j + half]);
    }
  }
}

// Adds to dK (not yet scaled) and dV of a warp's keys, those of the chunk or of the one before it
// (shift 0 or -64), what the chunk's queries give them. Where only one of the two is made, the
// other is not looked at.
template <int D, bool has_dk, bool has_dv>
__device__ __forceinline__ void through_keys(const Layout<D>& shared, const Places& places,
                                             int shift, const Chunk& chunk, const Sight& sight,
                                             float scale, int warp, int lane,
                                             [[maybe_unused]] ResultFragment (&dk)[D / 8],
                                             [[maybe_unused]] ResultFragment (&dv)[D / 8]) {
  constexpr int kStride = Layout<D>::kStride;
  const int first = shift + warp * 16;  // of the keys
  const int last = min(kChunk - 1, first + 15 + chunk.window - 1);
  TokenRows<D> key_rows;
  [[maybe_unused]] TokenRows<D> value_rows;
  const int64_t keys = shift == 0 ? places.keys : places.before;
  key_rows.load(shared.k + keys, warp, lane);
  if constexpr (has_dk) value_rows.load(shared.v + keys, warp, lane);
#pragma unroll 1
  for (int square = max(first, 0) / 16; square * 16 <= last; ++square) {
    const int64_t rows = places.queries + square * 16 * kStride;
    ResultFragment x[2] = {}, dx[2] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments queries = load_right_transposed(shared.q + rows + i * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(key_rows.parts[i], queries.halves[half], x[half]);
      }
      if constexpr (has_dk) {
        const RightFragments outputs =
            load_right_transposed(shared.df + rows + i * 16, kStride, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply(value_rows.parts[i], outputs.halves[half], dx[half]);
        }
      }
    }
    through_soft_max<D>(
        shared, chunk, sight, scale,
        [&](int i, int& t, int& key) {
          t = square * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
          key = first + i % 4 / 2 * 8 + lane / 4;
        },
        x, dx);
    [[maybe_unused]] const LeftFragment weights = as_left(x[0], x[1]);
    [[maybe_unused]] const LeftFragment gradients = as_left(dx[0], dx[1]);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      if constexpr (has_dv) {
        const RightFragments outputs = load_right(shared.df + rows + j * 16, kStride, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          multiply(weights, outputs.halves[half], dv[2 * j + half]);
      }
      if constexpr (has_dk) {
        const RightFragments queries = load_right(shared.q + rows + j * 16, kStride, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply(gradients, queries.halves[half], dk[2 * j + half]);
        }
      }
    }
  }
}

// dK or dV of a warp's keys to device memory, by way of its own `out`.
template <int D>
__device__ __forceinline__ void store_keys(const ResultFragment (&gradients)[D / 8],
                                           kernel_bf16* out, int lane, TilePlace<kernel_bf16> to) {
  constexpr int kColumns = Layout<D>::kOutColumns;
#pragma unroll
  for (int column = 0; column < D; column += kColumns) {
    ResultFragment part[kColumns / 8];
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) part[j] = gradients[column / 8 + j];
    to.column = column;
    store_rows<kColumns>(part, out, Layout<D>::kOutStride, lane, to);
  }
}

// The bias's gradients by distance: sums of the warps' squares.
__device__ __forceinline__ void store_bias(const float* squares, int window, float* to) {
  const int column = static_cast<int>(threadIdx.x), distances = square_distances(window);
  if (column >= 2 * window - 1) return;  // which are fewer than threads
  float sum = 0;
  for (int warp = 0; warp < 4; ++warp) {
    for (int apart = 0; apart < distances; ++apart) {
      const int offset = window - 1 - column - 16 * apart;  // of the query from the key
      for (int row = max(offset, 0); row < min(offset, 0) + 16; ++row) {
        const int at = row - offset;  // the key
        sum += squares[((warp * distances + apart) * 8 + at / 8 * 4 + row / 8 * 2 + at % 2) * 32 +
                       row % 8 * 4 + at % 8 / 2];
      }
    }
  }
  to[column] = sum;
}

template <int D>
__global__ __launch_bounds__(Warps<D>::kThreads,
                             D < 128 ? 2 : 1) void lavo_pass_window_backward(WindowBackward call,
                                                                             int stages) {
  constexpr int kStride = Layout<D>::kStride;
  constexpr bool kTwoTeams = Warps<D>::kShares == 2;
  if constexpr (!kTwoTeams) stages = 1;
  const Inputs& a = call.memory;
  SharedArena arena;
  const Layout<D> shared(arena, a.window, stages);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = thread / 32 % 4, team = thread / 32 / 4;
  const bool has_dv = !kTwoTeams || team == 0, has_dk = !kTwoTeams || team == 1;
  const int heads = static_cast<int>(a.q.H), head = static_cast<int>(blockIdx.x % heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T, chunks = (time + kChunk - 1) / kChunk;
  const int64_t from = static_cast<int64_t>(blockIdx.y) * call.run_chunks;
  const int64_t to = min(chunks, from + call.run_chunks);

  AsyncCopies copies;
  TokenFlags flags;
  const auto begin_keys = [&](int64_t number) {
    const int64_t at = number % 2 * kChunk * kStride, token = number * kChunk;
    begin_rows<D, Warps<D>>(copies, shared.k + at, {call.k, a.query_mask, row, token, head, 0});
    begin_rows<D, Warps<D>>(copies, shared.v + at, {call.v, a.query_mask, row, token, head, 0});
  };
  const auto begin_queries = [&](int64_t number) {
    const int64_t at = number % stages * kChunk * kStride, token = number * kChunk;
    begin_rows<D, Warps<D>>(copies, shared.q + at, {a.q, a.query_mask, row, token, head, 0});
    begin_rows<D, Warps<D>>(copies, shared.df + at, {call.df, a.query_mask, row, token, head, 0});
    if (number < to) {  // others belong to another block, which may be writing them
      begin_rows<D, Warps<D>>(copies, shared.dq + at,
                              {call.memory_dq, a.query_mask, row, token, head, 0});
    }
    // Warps 2 and 3 have the tokens of the chunk before.
    flags = {};
    if (thread < kChunk || (thread < 2 * kChunk && number > 0)) {
      flags.load(a, row, token + (thread < kChunk ? thread : thread - 2 * kChunk));
    }
  };
  // The keys before a chunk, after its queries.
  const auto begin_before = [&](int64_t number) {
    if (number > 0) begin_keys(number - 1);
    copies.commit();
  };

  for (int i = thread; i < 4 * square_distances(a.window) * 256; i += Warps<D>::kThreads) {
    shared.dbias[i] = 0;
  }
  load_bias(call.bias, call.bias_heads, head, a.window, shared.bias);
  const int64_t last = to == chunks ? to - 1 : to;
  if (last < to) begin_keys(last);
  begin_queries(last);
  begin_before(last);
  // What later chunks give to a warp's keys: dV and dK, or that of them which its team makes.
  ResultFragment waiting[kTwoTeams ? 1 : 2][D / 8] = {};
  auto& dv = waiting[0];
  auto& dk = waiting[kTwoTeams ? 0 : 1];
  Chunk chunk{0, 0, 0, 0, a.window, false};
  Sight sight{0, 0};
  for (int64_t number = last; number >= from; --number) {
    const int64_t token = number * kChunk;
    const int64_t on = number % 2 * kChunk * kStride;
    const Places places{number % stages * kChunk * kStride, on, kChunk * kStride - on};
    copies.wait<0>();
    if (thread < 2 * kChunk)
      flags.publish(shared.flags + thread / kChunk * kFlagWords, warp % 2, lane);
    __syncthreads();  // this chunk and the keys before it are there
    if (stages > 1 && number > from) begin_queries(number - 1);
    Chunk earlier = chunk;
    earlier.read(shared.flags + kFlagWords);
    chunk.read(shared.flags);
    chunk.length = static_cast<int>(min(int64_t{kChunk}, time - token));
    sight.counted_before = earlier.counted;
    sight.history = number > 0 ? max(highest_bit(earlier.firsts), 0) - kChunk : 0;
    if (thread < kChunk) {
      const int64_t at = (row * time + token + thread) * heads + head;
      const bool inside = thread < chunk.length;
      shared.log_sum_exp[thread] = inside ? call.log_sum_exp[at] : -kNothing;
      shared.along[thread] = inside ? call.df_dot_f[at] : 0.0f;
      shared.first_keys[thread] = sight.first_key(chunk, thread);
    }
    __syncthreads();  // the tokens' numbers are there

    const auto add_to_keys = [&](int shift) {
      if constexpr (!kTwoTeams) {
        through_keys<D, true, true>(shared, places, shift, chunk, sight, a.scale, warp, lane, dk,
                                    dv);
      } else if (has_dv) {
        through_keys<D, false, true>(shared, places, shift, chunk, sight, a.scale, warp, lane, dk,
                                     dv);
      } else {
        through_keys<D, true, false>(shared, places, shift, chunk, sight, a.scale, warp, lane, dk,
                                     dv);
      }
    };
    const int64_t first = token + warp * 16;
    if (number < to) {  // keys first: their sums leave the registers
      add_to_keys(0);
      kernel_bf16* out = shared.out + thread / 32 * 16 * Layout<D>::kOutStride;
      if (has_dk) {
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) dk[j].values[i] *= a.scale;
        }
        store_keys<D>(dk, out, lane, {call.dk, a.query_mask, row, first, head, 0});
      }
      if (has_dv) {
        store_keys<D>(dv, out, lane, {call.dv, a.query_mask, row, first, head, 0});

        kernel_bf16* own = shared.dq + places.queries + warp * 16 * kStride;
        ResultFragment dq[D / 8] = {};
        through_queries<D>(shared, places, chunk, sight, a.scale, warp, lane, dq);
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
        store_rows<D>(dq, own, kStride, lane, {call.dq, a.query_mask, row, first, head, 0});
      }
#pragma unroll
      for (int j = 0; j < D / 8; ++j) dk[j] = dv[j] = {};
    }
    if (number > from) add_to_keys(-kChunk);
    __syncthreads();  // nobody reads the tiles any more
    if (number > from) {
      if (stages == 1) begin_queries(number - 1);
      begin_before(number - 1);
    }
  }
  if (call.dbias == nullptr) return;
  const int64_t run = static_cast<int64_t>(blockIdx.y) * a.q.B + row;
  store_bias(shared.dbias, a.window, call.dbias + (run * heads + head) * (2 * a.window - 1));
}

// How many stages of tiles fit a block.
template <int D>
int stages_of(int64_t window) {
  return D == 128 && shared_bytes<Layout<D>>(window, 2) <= shared_memory_limit() ? 2 : 1;
}

}  // namespace

size_t window_backward_shared_memory(int64_t width, int64_t window) {
  return with_tile<128>(width, [&](auto tile) {
    constexpr int D = decltype(tile)::value;
    return shared_bytes<Layout<D>>(window, stages_of<D>(window));
  });
}

void cut(WindowBackward& call) {
  const int64_t chunks = (call.memory.q.T + kChunk - 1) / kChunk;
  const int64_t blocks = std::max<int64_t>(1, call.memory.q.B * call.memory.q.H);
  const int64_t wanted =
      std::clamp<int64_t>(kEnoughBlocks / blocks, 1, std::max<int64_t>(1, chunks / kFewestChunks));
  call.run_chunks = static_cast<int>((chunks + wanted - 1) / wanted);
  call.runs = static_cast<int>((chunks + call.run_chunks - 1) / call.run_chunks);
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
