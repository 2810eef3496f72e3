// The causal backward pass of the orthogonal memory on tensor cores: one kernel, one pass backward
// in time, no sums across blocks.
//
// Means are made again from the sums that forward left for each chunk. With P = Q B^T, U = dY B^T,
// p the soft-max of the logits scale m * P and n the number of tokens in the memory, per token
//   da = p * (m * U - p . (m * U)),   dm = (p * U + scale P * da) / n,   dP = scale m * da,
// what codes get, dC, is the sum of dm over the tokens that read them (a thread for every number
// walks back along the chunk), and
//   dQ = dP B,   dF = dC B,   dB = sum of (p * m)^T dY + dP^T Q + dC^T F,
// dB in registers from the first chunk to the last; rows of a batch are added up afterwards.
//
// Bytes a token and head: 10 d for q, f, dy, dq and df, 8 r / 64 for the sums; operations 16 d r.
// d = r = 64: 648 bytes, 65,500 operations, and some 490 KiB of a chunk through shared memory.
// Predicted, never measured: for batch 16, 12 heads, 8192 tokens on an H200, 212 us at 4.8 TB/s
// (237 us at the 4.3 that a copy reaches), 279 us of tensor cores at 370 TFLOP/s, and 420 us of
// shared memory at 128 bytes a clock, which bounds it.
#include "attention/primitives/cuda/orthogonal_memory_tiles.h"

namespace linnet::cuda::orthogonal_memory_fast {
namespace {

template <int D>
struct Layout {
  static constexpr int kStride = D + kPadding;
  static constexpr size_t kTile = size_t{kChunk} * kStride;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : basis(arena.take<kernel_bf16>(size_t{D} * kStride)),
        q(arena.take<kernel_bf16>(2 * kTile)),
        f(arena.take<kernel_bf16>(2 * kTile)),
        dy(arena.take<kernel_bf16>(2 * kTile)),
        weights(arena.take<kernel_bf16>(kTile)),
        gradients(arena.take<kernel_bf16>(kTile)),
        // Without the last row's padding: with it, 64 columns would need more than 99 KiB.
        sums(arena.take<float>(kTile - kPadding)),
        flags(arena.take<uint32_t>(2 * kFlagWords)) {}
  kernel_bf16* basis;
  kernel_bf16 *q, *f, *dy;  // two stages by turns
  kernel_bf16* weights;     // p * m, then dC
  kernel_bf16* gradients;   // dP, then results on their way out
  float* sums;              // codes, what tokens read, dm, dC
  uint32_t* flags;          // two chunks by turns
};

// Through the reads of the tokens of rows lane / 4 + 8 half: p * m and dP to their tiles, dm in the
// place of the sums. factor is 1 / n, 0 where the memory is empty.
template <int D>
__device__ __forceinline__ void read_gradients(const Layout<D>& shared, int warp, int lane,
                                               int half, float factor, const Backward& a,
                                               const ResultFragment (&queries)[D / 8],
                                               const ResultFragment (&outputs)[D / 8]) {
  const SoftMax<D> soft_max(shared.sums, warp, lane, half, a.rank, a.scale * factor, queries);
  float total = 0, along = 0;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const Pair sum = *results_at<D>(shared.sums, warp, lane, half, j);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float weight =
          soft_max.weight(sum.values[odd], queries[j].values[2 * half + odd], j, odd);
      total += weight;
      along += weight * (factor * sum.values[odd]) * outputs[j].values[2 * half + odd];
    }
  }
  const float norm = 1 / sum_of_row(total);
  along = sum_of_row(along) * norm * a.share;
  __syncwarp();  // sums are read again, not kept: registers
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    Pair& sum = *results_at<D>(shared.sums, warp, lane, half, j);
    float weights[2], gradients[2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float mean = factor * sum.values[odd];
      const float u = a.share * outputs[j].values[2 * half + odd];
      const float p =
          norm * soft_max.weight(sum.values[odd], queries[j].values[2 * half + odd], j, odd);
      const float da = p * (mean * u - along);
      weights[odd] = a.share * p * mean;
      gradients[odd] = a.scale * mean * da;
      sum.values[odd] = factor * (p * u + a.scale * queries[j].values[2 * half + odd] * da);
    }
    const int at = (warp * 16 + half * 8 + lane / 4) * Layout<D>::kStride + 8 * j + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(shared.weights + at) = pack(weights[0], weights[1]);
    *reinterpret_cast<uint32_t*>(shared.gradients + at) = pack(gradients[0], gradients[1]);
  }
}

// Gradients of one number of the sums: of everything completed, and of the codes of the window at
// hand.
struct RunningGradients {
  float completed, window;
  bool later_begins;  // the token after the chunk begins a segment

  // Back along a column [64] of dm, `stride` apart, which become dC.
  __device__ __forceinline__ void walk(const Chunk& chunk, float* column, int stride) {
    bool last = later_begins;                                         // of its segment
    int place = chunk.length - chunk.window_begin(chunk.length - 1);  // in its window, from 1
    for (int begin = (chunk.length - 1) / 8 * 8; begin >= 0; begin -= 8) {
      float reads[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) reads[i] = column[(begin + i) * stride];
#pragma unroll
      for (int i = 7; i >= 0; --i) {
        const int t = begin + i;
        if (t >= chunk.length) continue;
        if (last) completed = window = 0;
        if (place == chunk.window) window = completed + (chunk.inclusive ? reads[i] : 0.0f);
        completed += reads[i];
        column[t * stride] = window;
        last = chunk.begins_segment(t);
        place = place == 1 ? chunk.window : place - 1;
        if (last && t > 0) place = t - chunk.window_begin(t - 1);
      }
    }
    later_begins = chunk.begins_segment(0);
  }
};

// dQ and dF of a warp's tokens, by way of its rows of `gradients`; dC goes to `weights`. dF begins
// with a share of dY; `along` receives dF . f. For the row lane / 4 and the row 8 after.
template <int D>
__device__ __forceinline__ void expand_gradients(const Layout<D>& shared, int64_t on,
                                                 const float (&shares)[2], int warp, int lane,
                                                 TilePlace<kernel_bf16> queries,
                                                 TilePlace<kernel_bf16> codes, float (&along)[2]) {
  constexpr int kStride = Layout<D>::kStride;
  const int first = warp * 16 * kStride;
  kernel_bf16* own = shared.gradients + first;
  TokenRows<D> query_rows, code_rows;
  query_rows.load(shared.gradients, warp, lane);
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int half = word % 2, j = 2 * i + word / 2;
      const Pair pair = *results_at<D>(shared.sums, warp, lane, half, j);
      const uint32_t packed = pack(pair.values[0], pair.values[1]);
      code_rows.parts[i].words[word] = packed;
      *reinterpret_cast<uint32_t*>(shared.weights + first + (half * 8 + lane / 4) * kStride +
                                   8 * j + lane % 4 * 2) = packed;
    }
  }
  const kernel_bf16* dy = shared.dy + on + first;
  const kernel_bf16* f = shared.f + on + first;
#pragma unroll 1  // registers
  for (int j = 0; j < D / 16; ++j) {
    ResultFragment dq[2] = {}, df[2];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const uint32_t pair = packed_at<D>(dy, lane, part % 2, 2 * j + part / 2);
      df[part / 2].values[part % 2 * 2] = shares[part % 2] * low_of(pair);
      df[part / 2].values[part % 2 * 2 + 1] = shares[part % 2] * high_of(pair);
    }
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments basis =
          load_right(shared.basis + i * 16 * kStride + j * 16, kStride, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(query_rows.parts[i], basis.halves[half], dq[half]);
        multiply(code_rows.parts[i], basis.halves[half], df[half]);
      }
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float* values = df[part / 2].values + part % 2 * 2;
      const uint32_t stored = pack(values[0], values[1]);  // as others will read it
      const uint32_t pair = packed_at<D>(f, lane, part % 2, 2 * j + part / 2);
      along[part % 2] += low_of(stored) * low_of(pair) + high_of(stored) * high_of(pair);
    }
    queries.column = codes.column = j * 16;
    store_rows<16>(dq, own, kStride, lane, queries);
    store_rows<16>(df, own, kStride, lane, codes);
  }
}

template <int D>
__global__ __launch_bounds__(kTileThreads, 2) void orthogonal_memory_fast_backward(Backward a) {
  constexpr int kStride = Layout<D>::kStride;
  SharedArena arena;
  const Layout<D> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), head = static_cast<int>(blockIdx.x % heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T, chunks = (time + kChunk - 1) / kChunk;
  const int64_t state = (row * heads + head) * a.rank + thread;
  const bool has_number = thread < a.rank;

  AsyncCopies copies;
  TokenFlags flags;
  RunningSums sums{0, 0};
  int phase = 0;
  const auto begin = [&](int64_t number) {
    const int64_t token = number * kChunk, on = number % 2 * kChunk * kStride;
    begin_copy<D>(copies, shared.q + on, {a.q, a.query_mask, row, token, head, 0});
    begin_copy<D>(copies, shared.f + on, {a.f, a.code_mask, row, token, head, 0});
    begin_copy<D>(copies, shared.dy + on, {a.dy, a.query_mask, row, token, head, 0});
    copies.commit();
    if (thread < kChunk) flags.load(a, row, token + thread);
    if (has_number) {
      const float* saved =
          a.saved.sums + ((row * chunks + number) * heads + head) * 2 * a.rank + thread;
      sums = {saved[0], saved[a.rank]};
    }
    phase = a.saved.phases[row * chunks + number];
  };

  begin(chunks - 1);
  load_basis<D>(a, head, shared.basis);
  RunningGradients running{0, 0, false};
  if (has_number && a.dcompleted_out != nullptr) running.completed = a.dcompleted_out[state];
  if (has_number && a.dpartial_out != nullptr) running.window = a.dpartial_out[state];
  StateTile<D, D> dbasis;
  dbasis.load({nullptr, nullptr}, {});
  Chunk chunk{0, 0, 0, 0, a.window, a.inclusive};
  for (int64_t number = chunks - 1; number >= 0; --number) {
    const int64_t token = number * kChunk, on = number % 2 * kChunk * kStride;
    uint32_t* words = shared.flags + number % 2 * kFlagWords;
    copies.wait<0>();
    if (thread < kChunk) flags.publish(words, warp, lane);
    __syncthreads();  // this chunk is there; the other stage and the tiles are free
    chunk.length = static_cast<int>(min(int64_t{kChunk}, time - token));
    chunk.phase = phase;
    chunk.read(words);
    RunningSums before = sums;
    if (number > 0) begin(number - 1);

    ResultFragment queries[D / 8] = {}, outputs[D / 8] = {};
    {
      TokenRows<D> query_rows, output_rows, code_rows;
      code_rows.load(shared.f + on, warp, lane);
      project_codes<D>(code_rows, shared.basis, shared.sums, warp, lane);
      query_rows.load(shared.q + on, warp, lane);
      output_rows.load(shared.dy + on, warp, lane);
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        visit_basis<D>(shared.basis, lane, j, [&](int i, const RightFragment& right, int half) {
          multiply(query_rows.parts[i], right, queries[2 * j + half]);
          multiply(output_rows.parts[i], right, outputs[2 * j + half]);
        });
      }
    }
    __syncthreads();  // the codes are there
    if (has_number) before.walk(chunk, shared.sums + thread, kStride);
    __syncthreads();  // what tokens read is there
    float shares[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = warp * 16 + half * 8 + lane / 4;
      const int64_t seen = t < chunk.length ? a.tokens[row * time + token + t] : 0;
      shares[half] = seen > 0 ? a.code_share : a.empty_code_share;
      read_gradients<D>(shared, warp, lane, half, seen > 0 ? 1 / static_cast<float>(seen) : 0.0f, a,
                        queries, outputs);
    }
    __syncthreads();  // dm, p * m and dP are there
    if (has_number) running.walk(chunk, shared.sums + thread, kStride);
    dbasis.template add<false>(shared.weights, shared.dy + on);
    dbasis.template add<false>(shared.gradients, shared.q + on);
    __syncthreads();  // dC is there; nobody reads the tiles any more
    float along[2] = {};
    expand_gradients<D>(shared, on, shares, warp, lane,
                        {a.dq, a.query_mask, row, token + warp * 16, head, 0},
                        {a.df, a.code_mask, row, token + warp * 16, head, 0}, along);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(along[half]);
      const int64_t t = token + warp * 16 + half * 8 + lane / 4;
      if (a.df_dot_f == nullptr || lane % 4 != 0 || t >= time) continue;
      a.df_dot_f[(row * time + t) * heads + head] = sum;
    }
    __syncthreads();  // dC is there in bf16
    dbasis.template add<false>(shared.weights, shared.f + on);
  }
  if (has_number && a.dcompleted != nullptr) a.dcompleted[state] = running.completed;
  if (has_number && a.dpartial != nullptr) a.dpartial[state] = a.inclusive ? 0 : running.window;
  if (!dbasis.has_part()) return;
  const int width = static_cast<int>(a.q.K);
  float* to = a.dbasis + (row * heads + head) * a.rank * width;
#pragma unroll
  for (int i = 0; i < StateTile<D, D>::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < StateTile<D, D>::kColumns; ++j) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int l = dbasis.row(i, part / 2), column = dbasis.column(j) + part % 2;
        if (l < a.rank && column < width) to[l * width + column] = dbasis.memory[i][j].values[part];
      }
    }
  }
}

}  // namespace

bool has_backward(int64_t width, int64_t rank) {
  return has_forward(width, rank) && width <= 64;
}

size_t backward_shared_memory(int64_t width) {
  return with_tile<64>(width,
                       [](auto tile) { return shared_bytes<Layout<decltype(tile)::value>>(); });
}

void causal_backward(const Backward& call) {
  with_tile<64>(call.q.K, [&](auto tile) {
    constexpr int D = decltype(tile)::value;
    launch({"orthogonal_memory_fast_backward", blocks_for(call.q.B * call.q.H, 1), kTileThreads,
            shared_bytes<Layout<D>>()},
           orthogonal_memory_fast_backward<D>, call);
  });
}

}  // namespace linnet::cuda::orthogonal_memory_fast
