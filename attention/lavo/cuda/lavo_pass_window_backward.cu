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
// Bytes a token and head of width d: 16 d + 8 for q, k, v, df and dq, dq, dk, dv, the log-sum-exp
// and dF . f; operations 14 d times the 16 to 80 keys of the squares that a window touches. d = 64,
// w = 16: 1032 bytes and 28,700 operations. Predicted, never measured: for batch 16, 12 heads, 8192
// tokens on an H200, 338 us at 4.8 TB/s (378 us at the 4.3 that a copy reaches) and 122 us of
// tensor cores at 370 TFLOP/s, so that memory bounds it.
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
struct Layout {
  static constexpr int kStride = D + kPadding;
  static constexpr size_t kTile = size_t{kChunk} * kStride;
  __host__ __device__ Layout(SharedArena& arena, int64_t window)
      : q(arena.take<kernel_bf16>(kTile)),
        df(arena.take<kernel_bf16>(kTile)),
        dq(arena.take<kernel_bf16>(kTile)),
        stage(arena.take<kernel_bf16>(kTile)),
        k(arena.take<kernel_bf16>(2 * kTile)),
        v(arena.take<kernel_bf16>(2 * kTile)),
        dbias(arena.take<float>(static_cast<size_t>(4 * square_distances(window)) * 256)),
        bias(arena.take<float>(kWidestWindow)),
        log_sum_exp(arena.take<float>(kChunk)),
        along(arena.take<float>(kChunk)),
        first_keys(arena.take<int>(kChunk)),
        flags(arena.take<uint32_t>(2 * kFlagWords)) {}
  kernel_bf16 *q, *df, *dq;
  kernel_bf16* stage;  // dK and dV on their way out
  kernel_bf16 *k, *v;  // of two chunks by turns
  float* dbias;        // of each warp, [distance between squares][8][32 lanes]
  float* bias;         // by distance
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

// dQ of a warp's queries, and what the bias gets from them.
template <int D>
__device__ __forceinline__ void through_queries(const Layout<D>& shared, int64_t on, int64_t before,
                                                const Chunk& chunk, const Sight& sight, float scale,
                                                int warp, int lane, ResultFragment (&dq)[D / 8]) {
  constexpr int kStride = Layout<D>::kStride;
  TokenRows<D> queries, outputs;
  queries.load(shared.q, warp, lane);
  outputs.load(shared.df, warp, lane);
  float* dbias = shared.dbias + warp * square_distances(chunk.window) * 256 + lane;
#pragma unroll 1
  for (int square = max(sight.history, warp * 16 - chunk.window + 1) >> 4; square <= warp;
       ++square) {
    const int64_t rows = (square < 0 ? before : on) + (square & 3) * 16 * kStride;
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

// Adds to dK (not yet scaled) and dV of a warp's keys, which are `keys` in the tiles and `shift`
// (0 or -64) away from the chunk, what its queries give them.
template <int D>
__device__ __forceinline__ void through_keys(const Layout<D>& shared, int64_t keys, int shift,
                                             const Chunk& chunk, const Sight& sight, float scale,
                                             int warp, int lane, ResultFragment (&dk)[D / 8],
                                             ResultFragment (&dv)[D / 8]) {
  constexpr int kStride = Layout<D>::kStride;
  const int first = shift + warp * 16;  // of the keys
  const int last = min(kChunk - 1, first + 15 + chunk.window - 1);
  TokenRows<D> key_rows, value_rows;
  key_rows.load(shared.k + keys, warp, lane);
  value_rows.load(shared.v + keys, warp, lane);
#pragma unroll 1
  for (int square = max(first, 0) / 16; square * 16 <= last; ++square) {
    const int rows = square * 16 * kStride;
    ResultFragment x[2] = {}, dx[2] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments queries = load_right_transposed(shared.q + rows + i * 16, kStride, lane);
      const RightFragments outputs =
          load_right_transposed(shared.df + rows + i * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(key_rows.parts[i], queries.halves[half], x[half]);
        multiply(value_rows.parts[i], outputs.halves[half], dx[half]);
      }
    }
    through_soft_max<D>(
        shared, chunk, sight, scale,
        [&](int i, int& t, int& key) {
          t = square * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
          key = first + i % 4 / 2 * 8 + lane / 4;
        },
        x, dx);
    const LeftFragment weights = as_left(x[0], x[1]), gradients = as_left(dx[0], dx[1]);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      const RightFragments outputs = load_right(shared.df + rows + j * 16, kStride, lane);
      const RightFragments queries = load_right(shared.q + rows + j * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(weights, outputs.halves[half], dv[2 * j + half]);
        multiply(gradients, queries.halves[half], dk[2 * j + half]);
      }
    }
  }
}

// The bias's gradients by distance: sums of the warps' squares.
__device__ __forceinline__ void store_bias(const float* squares, int window, float* to) {
  const int thread = static_cast<int>(threadIdx.x), distances = square_distances(window);
  for (int column = thread; column < 2 * window - 1; column += kTileThreads) {
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
}

template <int D>
__global__ __launch_bounds__(kTileThreads, 2) void lavo_pass_window_backward(WindowBackward call) {
  constexpr int kStride = Layout<D>::kStride;
  const Inputs& a = call.memory;
  SharedArena arena;
  const Layout<D> shared(arena, a.window);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), head = static_cast<int>(blockIdx.x % heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T, chunks = (time + kChunk - 1) / kChunk;
  const int64_t from = static_cast<int64_t>(blockIdx.y) * call.run_chunks;
  const int64_t to = min(chunks, from + call.run_chunks);

  AsyncCopies copies;
  TokenFlags flags;
  const auto begin_keys = [&](int64_t number) {
    const int64_t on = number % 2 * kChunk * kStride;
    begin_copy<D>(copies, shared.k + on, {call.k, a.query_mask, row, number * kChunk, head, 0});
    begin_copy<D>(copies, shared.v + on, {call.v, a.query_mask, row, number * kChunk, head, 0});
  };
  // A chunk's queries, and the keys before them.
  const auto begin = [&](int64_t number) {
    const int64_t token = number * kChunk;
    begin_copy<D>(copies, shared.q, {a.q, a.query_mask, row, token, head, 0});
    begin_copy<D>(copies, shared.df, {call.df, a.query_mask, row, token, head, 0});
    if (number < to) {  // others belong to another block, which may be writing them
      begin_copy<D>(copies, shared.dq, {call.memory_dq, a.query_mask, row, token, head, 0});
    }
    if (number > 0) begin_keys(number - 1);
    copies.commit();
    // Warps 2 and 3 have the tokens of the chunk before.
    flags = {};
    if (thread < kChunk || number > 0) {
      flags.load(a, row, token + (thread < kChunk ? thread : thread - 2 * kChunk));
    }
  };

  for (int i = thread; i < 4 * square_distances(a.window) * 256; i += kTileThreads) {
    shared.dbias[i] = 0;
  }
  load_bias(call.bias, call.bias_heads, head, a.window, shared.bias);
  const bool is_last = to == chunks;
  if (is_last) begin_keys(to - 1);
  begin(is_last ? to - 1 : to);
  ResultFragment dk[D / 8] = {}, dv[D / 8] = {};
  Chunk chunk{0, 0, 0, 0, a.window, false};
  Sight sight{0, 0};
  for (int64_t number = is_last ? to - 1 : to; number >= from; --number) {
    const int64_t token = number * kChunk, on = number % 2 * kChunk * kStride;
    const int64_t before = kChunk * kStride - on;
    copies.wait<0>();
    flags.publish(shared.flags + thread / kChunk * kFlagWords, warp % 2, lane);
    __syncthreads();  // this chunk and the keys before it are there
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

    kernel_bf16* own = shared.dq + warp * 16 * kStride;
    const int64_t first = token + warp * 16;
    if (number < to) {  // keys first: their sums leave the registers
      through_keys<D>(shared, on, 0, chunk, sight, a.scale, warp, lane, dk, dv);
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) dk[j].values[i] *= a.scale;
      }
      kernel_bf16* stage = shared.stage + warp * 16 * kStride;
      store_rows<D>(dk, stage, kStride, lane, {call.dk, a.query_mask, row, first, head, 0});
      store_rows<D>(dv, stage, kStride, lane, {call.dv, a.query_mask, row, first, head, 0});

      ResultFragment dq[D / 8] = {};
      through_queries<D>(shared, on, before, chunk, sight, a.scale, warp, lane, dq);
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
#pragma unroll
      for (int j = 0; j < D / 8; ++j) dk[j] = dv[j] = {};
    }
    if (number > from) {
      through_keys<D>(shared, before, -kChunk, chunk, sight, a.scale, warp, lane, dk, dv);
    }
    __syncthreads();  // nobody reads the tiles any more
    if (number > from) begin(number - 1);
  }
  if (call.dbias == nullptr) return;
  const int64_t run = static_cast<int64_t>(blockIdx.y) * a.q.B + row;
  store_bias(shared.dbias, a.window, call.dbias + (run * heads + head) * (2 * a.window - 1));
}

}  // namespace

size_t window_backward_shared_memory(int64_t width, int64_t window) {
  return with_tile<64>(
      width, [&](auto tile) { return shared_bytes<Layout<decltype(tile)::value>>(window); });
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
  with_tile<64>(call.memory.q.K, [&](auto tile) {
    constexpr int D = decltype(tile)::value;
    launch(
        {"lavo_pass_window_backward",
         dim3(blocks_for(call.memory.q.B * call.memory.q.H, 1), static_cast<unsigned>(call.runs)),
         kTileThreads, shared_bytes<Layout<D>>(call.memory.window)},
        lavo_pass_window_backward<D>, call);
  });
}

}  // namespace linnet::cuda::lavo_pass_fast
