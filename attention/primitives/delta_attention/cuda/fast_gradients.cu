// What the scans of the delta rule on tensor cores leave to do backward: gradients of 64 tokens
// each, from S before and G after them. With the names of ../chunk.h and N = -beta dX,
//
//   dbeta = dX . X
//   dW = dY (beta X)^T * D,  dP = N (beta X)^T * D below the diagonal
//   dQ = exp(s) (dY S^T) + dW K
//   dK = exp(s) (N S^T) + dP K + [dW^T Q + dP^T K + exp(s_last - s) (beta X G^T)]
//
// The gradient of the log-decay of token t is <S, G> after the 64 tokens, and from every token from
// t on q . dq + k . dk, in which the terms in brackets count negatively. Weights of pairs of tokens
// are rounded once for both, so that equal terms cancel.
#include "attention/primitives/delta_attention/cuda/fast_gates.h"
#include "core/cuda/block_reduce.h"

namespace linnet::cuda::delta_attention_fast {
namespace {

using Block = FourWarps;  // and 64 tokens, of which a warp has 16
constexpr int kStride = kTile + kPadding;
constexpr int kRows = 16 * kStride;  // elements of 16 rows

struct Layout {
  static constexpr size_t kSize = size_t{kGroup} * kStride;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : q(arena.take<kernel_bf16>(kSize)),
        k(arena.take<kernel_bf16>(kSize)),
        dy(arena.take<kernel_bf16>(kSize)),
        x(arena.take<kernel_bf16>(kSize)),
        dv(arena.take<kernel_bf16>(kSize)),
        state(arena.take<kernel_bf16>(kSize)),
        gradient(arena.take<kernel_bf16>(kSize)),
        dqueries(arena.take<kernel_bf16>(kSize)),
        dkeys(arena.take<kernel_bf16>(kSize)),
        gates(arena),
        terms(arena.take<float>(kGroup)),
        scratch(arena.take<float>(33)) {}
  kernel_bf16 *q, *k, *dy, *x, *dv;
  kernel_bf16 *state, *gradient;  // S^T before, G^T after
  kernel_bf16 *dqueries, *dkeys;  // dW and dP, lower squares
  Gates<kGroup> gates;
  float *terms, *scratch;
};

// [64,64] of device memory to a tile.
__device__ __forceinline__ void begin_state(AsyncCopies& copies, kernel_bf16* tile,
                                            const kernel_bf16* from) {
#pragma unroll
  for (int i = 0; i < kTile * kTile / 8 / Block::kThreads; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * Block::kThreads;
    const int row = piece / (kTile / 8), column = piece % (kTile / 8) * 8;
    copies.copy(tile + row * kStride + column, from + piece * 8, true);
  }
}

// Of what the scan left of a token: the factor that makes N.
__device__ __forceinline__ float negative(float beta) {
  return left_factor(beta) == beta ? -1.0f : -beta;
}

// Squares of dW of row `warp` of squares and of dP of the row so far from the end, so that all
// warps have as many.
__device__ __forceinline__ void make_weights(const Layout& shared, bool decays, float query_scale,
                                             int warp, int lane) {
  const Gates<kGroup>& gates = shared.gates;
#pragma unroll 1
  for (int job = 0; job < 5; ++job) {
    const bool queries = job <= warp;
    const int row = queries ? warp : 3 - warp, column = queries ? job : job - warp - 1;
    ResultFragment square[2];
    multiply_rows((queries ? shared.dy : shared.dv) + row * kRows, shared.x + column * kRows,
                  kStride, lane, square);
    float columns[4], rows[2] = {query_scale, query_scale};
    gates.load_columns(column * 16, lane, columns);
    for (int half = 0; !queries && half < 2; ++half) {
      rows[half] = negative(gates.beta[row * 16 + lane / 4 + half * 8]);
    }
    gates.scale_square(row * 16, column * 16, decays, !queries, rows, columns, lane, square);
    store_square(square, (queries ? shared.dqueries : shared.dkeys) + row * kRows + column * 16,
                 kStride, lane);
  }
}

using Rows = ResultFragment[kTile / 8];  // of 16 tokens

// first += left[0] tile, second += left[1] tile: 16 rows of a tile.
template <typename Tile>
__device__ __forceinline__ void add_rows(const LeftFragment& left, const kernel_bf16* tile,
                                         int lane, Rows& sums, const Tile& other) {
#pragma unroll
  for (int j = 0; j < kTile / 16; ++j) {
    const RightFragments rows = load_right(tile + j * 16, kStride, lane);
    for (int half = 0; half < 2; ++half) multiply(left, rows.halves[half], sums[2 * j + half]);
    other(j, rows);
  }
}
struct NoOther {
  __device__ __forceinline__ void operator()(int, const RightFragments&) const {}
};

// A lane's part of the inner product of row lane / 4 + 8 half of results and of a tile.
__device__ __forceinline__ float product(const Rows& results, const kernel_bf16* rows, int half,
                                         int lane) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    const uint32_t word = *word_at(rows, kStride, lane, half, j);
    const float* pair = results[j].values + 2 * half;
    sum += low_of(word) * pair[0];
    sum += high_of(word) * pair[1];
  }
  return sum;
}
__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// dbeta of 16 tokens.
__device__ __forceinline__ void beta_gradients(const kernel_bf16* x, const kernel_bf16* dv,
                                               const float (&beta)[2], int lane,
                                               float (&dbeta)[2]) {
  dbeta[0] = dbeta[1] = 0;
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t left = *word_at(dv, kStride, lane, half, j);
      const uint32_t right = *word_at(x, kStride, lane, half, j);
      dbeta[half] += low_of(left) * low_of(right);
      dbeta[half] += high_of(left) * high_of(right);
    }
  }
  for (int half = 0; half < 2; ++half) {
    dbeta[half] = sum_of_four(dbeta[half]) / left_factor(beta[half]);
  }
}
// dv of the tokens among 16 of which the scan left something else.
__device__ __forceinline__ void correct_values(const TilePlace<kernel_bf16>& dv, const float* beta,
                                               int lane) {
  const int64_t token = dv.begin + lane % 16;
  const float own = beta[lane % 16];
  if (left_factor(own) == own || !dv.inside(token, 0)) return;
  for (int i = lane / 16; i < dv.view.K; i += 2) {
    kernel_bf16* at = dv.at(token, i);
    store(at, own * load(at));
  }
}

// A thread's part of <S, G>.
__device__ __forceinline__ float state_product(const Layout& shared) {
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < kTile * kTile / 2 / Block::kThreads; ++i) {
    const int word = static_cast<int>(threadIdx.x) + i * Block::kThreads;
    const int at = word / (kTile / 2) * kStride + word % (kTile / 2) * 2;
    const uint32_t S = *reinterpret_cast<const uint32_t*>(shared.state + at);
    const uint32_t G = *reinterpret_cast<const uint32_t*>(shared.gradient + at);
    sum += low_of(S) * low_of(G) + high_of(S) * high_of(G);
  }
  return sum;
}

// The gradients of log-decays of two tokens for each lane of a warp, which add up what the tokens
// from them on give and what is carried past the last one.
__device__ __forceinline__ void store_log_decays(const TokenGradients& a, const float* terms,
                                                 float carried, int64_t row, int head,
                                                 int64_t first) {
  const int lane = static_cast<int>(threadIdx.x);
  const double own[2] = {static_cast<double>(terms[2 * lane]),
                         static_cast<double>(terms[2 * lane + 1])};
  double sum = own[0] + own[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const double later = __shfl_down_sync(~0u, sum, static_cast<unsigned>(distance));
    if (lane + distance < 32) sum += later;
  }
  sum += static_cast<double>(carried);
  for (int n = 0; n < 2; ++n) {
    const int64_t token = first + 2 * lane + n, at = row * a.gates.time + token;
    if (token < a.gates.time) {
      const bool counts =
          is_set(a.gates.mask, at) && !begins_segment(a.gates.segments, row, a.gates.time, token);
      a.dlog_decay[at * a.gates.heads + head] = counts ? static_cast<float>(sum) : 0.0f;
    }
    sum -= own[n];
  }
}

__global__ __launch_bounds__(Block::kThreads, 2) void delta_attention_fast_gradients(
    const __grid_constant__ TokenGradients a) {
  SharedArena arena;
  const Layout shared(arena);
  const Gates<kGroup>& gates = shared.gates;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(gridDim.x), head = static_cast<int>(blockIdx.x);
  const int64_t time = a.gates.time, row = blockIdx.z, first = int64_t{kGroup} * blockIdx.y;
  const int64_t place = (row * heads + head) * gridDim.y + blockIdx.y;
  const uint8_t* mask = a.gates.mask;

  AsyncCopies copies;
  begin_copy<kTile, Block>(copies, shared.dy, {a.dy, mask, row, first, head, 0});
  begin_copy<kTile, Block>(copies, shared.x, {a.x, mask, row, first, head, 0});
  begin_copy<kTile, Block>(copies, shared.dv, {a.left, mask, row, first, head, 0});
  copies.commit();
  begin_copy<kTile, Block>(copies, shared.q, {a.q, mask, row, first, head, 0});
  begin_copy<kTile, Block>(copies, shared.k, {a.k, mask, row, first, head, 0});
  begin_state(copies, shared.state, a.states + place * kTile * kTile);
  begin_state(copies, shared.gradient, a.gradients + place * kTile * kTile);
  copies.commit();
  if (warp == 0) gates.publish(Gates<kGroup>::read(a.gates, row, head, first, lane), lane);
  copies.wait<1>();
  __syncthreads();
  make_weights(shared, a.decays, a.query_scale, warp, lane);
  copies.wait<0>();
  __syncthreads();

  const int own = warp * kRows, token = warp * 16 + lane / 4;
  const int64_t begin = first + warp * 16;
  const float beta[2] = {gates.beta[token], gates.beta[token + 8]};
  Rows dq = {}, dk = {};
#pragma unroll
  for (int i = 0; i < kTile / 16; ++i) {
    const LeftFragment douts = load_left(shared.dy + own + i * 16, kStride, lane);
    const LeftFragment dvs = load_left(shared.dv + own + i * 16, kStride, lane);
    add_rows(douts, shared.state + i * kRows, lane, dq, [&](int j, const RightFragments& rows) {
      for (int half = 0; half < 2; ++half) multiply(dvs, rows.halves[half], dk[2 * j + half]);
    });
  }
  const float since[2] = {gates.since[token], gates.since[token + 8]};
  scale_rows(dq, {a.query_scale * since[0], a.query_scale * since[1]});
  scale_rows(dk, {negative(beta[0]) * since[0], negative(beta[1]) * since[1]});
#pragma unroll 1
  for (int square = 0; square <= warp; ++square) {
    const LeftFragment queries = load_left(shared.dqueries + own + square * 16, kStride, lane);
    const LeftFragment keys = load_left(shared.dkeys + own + square * 16, kStride, lane);
    add_rows(queries, shared.k + square * kRows, lane, dq, [&](int j, const RightFragments& rows) {
      for (int half = 0; half < 2; ++half) multiply(keys, rows.halves[half], dk[2 * j + half]);
    });
  }
  float terms[2] = {};
  if (a.dlog_decay != nullptr) {
    for (int half = 0; half < 2; ++half) {
      terms[half] = product(dq, shared.q + own, half, lane);
      terms[half] += 2 * product(dk, shared.k + own, half, lane);
    }
  }
  float dbeta[2];
  beta_gradients(shared.x + own, shared.dv + own, beta, lane, dbeta);
  for (int half = 0; half < 2; ++half) {
    const int64_t at = begin + lane / 4 + 8 * half;
    if (lane % 4 == 0 && at < time) a.dbeta.put((row * time + at) * heads + head, dbeta[half]);
  }
  correct_values({a.dv, mask, row, begin, head, 0}, gates.beta + warp * 16, lane);
  store_rows<kTile>(dq, shared.dy + own, kStride, lane, {a.dq, mask, row, begin, head, 0});

#pragma unroll 1
  for (int square = warp; square < 4; ++square) {
    const int at = square * kRows + warp * 16;
    add_rows(load_left_transposed(shared.dqueries + at, kStride, lane), shared.q + square * kRows,
             lane, dk, NoOther{});
    add_rows(load_left_transposed(shared.dkeys + at, kStride, lane), shared.k + square * kRows,
             lane, dk, NoOther{});
  }
  Rows left = {};  // by the state behind the tokens
#pragma unroll
  for (int i = 0; i < kTile / 16; ++i) {
    const LeftFragment corrections = load_left(shared.x + own + i * 16, kStride, lane);
    add_rows(corrections, shared.gradient + i * kRows, lane, left, NoOther{});
  }
  scale_rows(left, {beta[0] * gates.until[token], beta[1] * gates.until[token + 8]});
  float leaving = 0;
  for (int half = 0; a.dlog_decay != nullptr && half < 2; ++half) {
    leaving += product(left, shared.k + own, half, lane);
  }
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) dk[j] += left[j];
  for (int half = 0; a.dlog_decay != nullptr && half < 2; ++half) {
    terms[half] -= product(dk, shared.k + own, half, lane);
  }
  store_rows<kTile>(dk, shared.x + own, kStride, lane, {a.dk, mask, row, begin, head, 0});
  if (a.dlog_decay == nullptr) return;

  for (int half = 0; half < 2; ++half) {
    const float sum = sum_of_four(terms[half]);
    if (lane % 4 == 0) shared.terms[token + 8 * half] = sum;
  }
  const float whole = gates.whole();
  const float kept = whole == 0 ? 0.0f : whole * state_product(shared);
  const float carried = block_sum(kept + leaving, shared.scratch);
  if (warp == 0) store_log_decays(a, shared.terms, carried, row, head, first);
}

}  // namespace

void token_gradients(const TokenGradients& call) {
  const dim3 grid(static_cast<unsigned>(call.gates.heads),
                  static_cast<unsigned>((call.gates.time + kGroup - 1) / kGroup),
                  static_cast<unsigned>(call.q.B));
  launch({"delta_attention_fast_gradients", grid, Block::kThreads, shared_bytes<Layout>()},
         delta_attention_fast_gradients, call);
}

}  // namespace linnet::cuda::delta_attention_fast
