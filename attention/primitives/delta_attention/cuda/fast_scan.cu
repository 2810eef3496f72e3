// The scans of the delta rule on tensor cores (fast.h has their equations): of S forward in time,
// of its gradient G backward.
#include "attention/primitives/delta_attention/cuda/fast_triangles.h"
#include "core/cuda/kept_bits.h"

namespace linnet::cuda::delta_attention_fast {
namespace {

// Half of a block's warps prepare chunks, the others solve them.
using Preparers = Team<4, kTokens>;
constexpr int kSolvers = 4;
constexpr int kThreads = Preparers::kThreads + 32 * kSolvers;
constexpr int kStages = 3;  // of a chunk's tiles: on their way, prepared, solved
constexpr int kTileSize = kTokens * kStride;

struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : q(arena.take<kernel_bf16>(size_t{kStages} * kTileSize)),
        k(arena.take<kernel_bf16>(size_t{kStages} * kTileSize)),
        values(arena.take<kernel_bf16>(size_t{kStages} * kTileSize)),
        rows(arena.take<kernel_bf16>(size_t{kSolvers} * 16 * kSquareStride)),
        gates(arena, kStages),
        triangles(arena) {}
  kernel_bf16 *q, *k, *values;
  kernel_bf16* rows;  // of each solving warp, on their way out
  Gates<kTokens> gates;
  Triangles triangles;
};

// A chunk in shared memory.
struct Chunk {
  const kernel_bf16 *q, *k, *values;
  Gates<kTokens> gates;
  Triangles triangles;

  __device__ __forceinline__ Chunk(const Layout& all, int step)
      : q(all.q + step % kStages * kTileSize),
        k(all.k + step % kStages * kTileSize),
        values(all.values + step % kStages * kTileSize),
        gates(all.gates, step % kStages),
        triangles(all.triangles, step % 2) {}
};

// 16 values of all tokens of a chunk: [16,32] in results, or in operands.
using Values = ResultFragment[4];
using ValueOperands = LeftFragment[2];

// results of 16 tokens += left times a square of a triangle, or its transpose.
template <bool transposed>
__device__ __forceinline__ void add_square(const LeftFragment& left, const kernel_bf16* square,
                                           int lane, ResultFragment& first,
                                           ResultFragment& second) {
  const RightFragments right = transposed ? load_right_transposed(square, kSquareStride, lane)
                                          : load_right(square, kSquareStride, lane);
  multiply(left, right.halves[0], first);
  multiply(left, right.halves[1], second);
}

// Calls visit(element, token of the chunk) for a lane's elements.
template <typename Visit>
__device__ __forceinline__ void visit_tokens(int lane, Values& values, const Visit& visit) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(values[n].values[i], n * 8 + lane % 4 * 2 + i % 2);
  }
}
// The same of two words of 16 tokens; returns the operand of what visit() gives.
template <typename Factor>
__device__ __forceinline__ LeftFragment scaled(const LeftFragment& values, int first, int lane,
                                               const Factor& factor) {
  LeftFragment result;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int token = first + word / 2 * 8 + lane % 4 * 2;
    result.words[word] = pack(low_of(values.words[word]) * factor(token),
                              high_of(values.words[word]) * factor(token + 1));
  }
  return result;
}
template <typename Factor>
__device__ __forceinline__ LeftFragment scaled(const ResultFragment& first,
                                               const ResultFragment& second, int token, int lane,
                                               const Factor& factor) {
  const ResultFragment both[2] = {first, second};
  LeftFragment result;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const float* pair = both[word / 2].values + word % 2 * 2;
    const int at = token + word / 2 * 8 + lane % 4 * 2;
    result.words[word] = pack(pair[0] * factor(at), pair[1] * factor(at + 1));
  }
  return result;
}

// 8 bytes of a row.
struct alignas(8) Two {
  uint32_t words[2];
};

// Writes a warp's 16 values of 32 tokens, from `to.column` on, to rows of device memory by way of
// `rows`.
__device__ __forceinline__ void store_values(const ValueOperands& values, kernel_bf16* rows,
                                             int lane, const TilePlace<kernel_bf16>& to) {
  __syncwarp();
#pragma unroll
  for (int word = 0; word < 8; ++word) {
    // Four neighbouring values are in rows that one lane reads.
    const int value = lane / 4 + word % 2 * 8, row = value / 4 * 2 + value % 2 + value % 4 / 2 * 8;
    const int token = word / 2 * 8 + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(rows + row * kSquareStride + token) =
        values[word / 4].words[word % 4];
  }
  __syncwarp();
  const int own = lane % 4 * 4;
  const int64_t first = to.begin + lane / 4, step = 8 * to.view.time_stride;
  const int count = to.column + own < to.view.K ? rows_left(to.view.T - first) : 0;
  kernel_bf16* at = to.at(first, own);
#pragma unroll
  for (int square = 0; square < 2; ++square) {
    const LeftFragment tokens = load_left_transposed(rows + square * 16, kSquareStride, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half, at += step) {
      if (square * 16 + half * 8 >= count) continue;
      *reinterpret_cast<Two*>(at) = {{tokens.words[half], tokens.words[2 + half]}};
    }
  }
}

// 16 values of a state, transposed, in the registers of a warp.
struct State {
  ResultFragment memory[kTile / 8];
  int value;  // of row 0

  // Calls visit(element, its place in a state [K,V]) for those that there are.
  template <typename Visit>
  __device__ __forceinline__ void visit(int lane, int64_t K, int64_t V, const Visit& visit) {
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = j * 8 + lane % 4 * 2 + i % 2, at = value + lane / 4 + i / 2 * 8;
        if (key < K && at < V) visit(memory[j].values[i], key * V + at);
      }
    }
  }
  // Leaves S, as products read it, in [64,64].
  __device__ __forceinline__ void leave(kernel_bf16* to, int lane) const {
    to += (value + lane / 4) * kTile + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* pair = memory[j].values + 2 * half;
        *reinterpret_cast<uint32_t*>(to + half * 8 * kTile + j * 8) = pack(pair[0], pair[1]);
      }
    }
  }
  // results[n] += S tiles[n]^T, of rows of keys.
  template <int count>
  __device__ __forceinline__ void read(const kernel_bf16* const (&tiles)[count], int lane,
                                       Values (&results)[count]) const {
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      const LeftFragment rounded = as_left(memory[2 * i], memory[2 * i + 1]);
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int square = 0; square < 2; ++square) {
          const RightFragments rows =
              load_right_transposed(tiles[n] + square * 16 * kStride + i * 16, kStride, lane);
          for (int half = 0; half < 2; ++half) {
            multiply(rounded, rows.halves[half], results[n][2 * square + half]);
          }
        }
      }
    }
  }
  // S = whole S + left rows, of tiles; a state that is forgotten is left out.
  template <int count>
  __device__ __forceinline__ void add(float whole, const ValueOperands (&left)[count],
                                      const kernel_bf16* const (&tiles)[count], int lane) {
    if (whole == 0) {
#pragma unroll
      for (auto& each : memory) each = {};
    }
#pragma unroll
    for (int j = 0; j < kTile / 16; ++j) {
      ResultFragment sums[2] = {};
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int square = 0; square < 2; ++square) {
          const RightFragments rows =
              load_right(tiles[n] + square * 16 * kStride + j * 16, kStride, lane);
          for (int half = 0; half < 2; ++half) {
            multiply(left[n][square], rows.halves[half], sums[half]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& element = memory[2 * j + i / 4].values[i % 4];
        element = whole * element + sums[i / 4].values[i % 4];
      }
    }
  }
};

// The number of a block's state.
__device__ __forceinline__ int64_t own_state() {
  return static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
}

// Where the state of the group of these tokens is left.
__device__ __forceinline__ kernel_bf16* state_of_group(const Scan& a, int64_t token) {
  const int64_t groups = (a.gates.time + kGroup - 1) / kGroup;
  return a.states + (own_state() * groups + token / kGroup) * kTile * kTile;
}

__device__ __forceinline__ void solve_forward(const Scan& a, const Chunk& chunk, State& state,
                                              kernel_bf16* rows, int lane,
                                              const TilePlace<kernel_bf16>& y) {
  const Gates<kTokens>& gates = chunk.gates;
  const kernel_bf16 *keys = chunk.triangles.keys, *queries = chunk.triangles.queries;
  if (a.states != nullptr && y.begin % kGroup == 0) {
    state.leave(state_of_group(a, y.begin), lane);
  }
  Values results[2] = {};
  state.read<2>({chunk.k, chunk.q}, lane, results);
  Values &x = results[0], &read = results[1];
  visit_tokens(lane, x, [&](float& each, int token) { each *= -gates.since[token]; });
  visit_tokens(lane, read,
               [&](float& each, int token) { each *= a.query_scale * gates.since[token]; });
#pragma unroll
  for (int square = 0; square < 2; ++square) {
    const LeftFragment values =
        load_left_transposed(chunk.values + square * 16 * kStride + state.value, kStride, lane);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      float* pair = x[2 * square + word / 2].values + word % 2 * 2;
      pair[0] += low_of(values.words[word]);
      pair[1] += high_of(values.words[word]);
    }
  }
  ValueOperands solved;
  add_square<true>(as_left(x[0], x[1]), keys, lane, x[0], x[1]);
  solved[0] = as_left(x[0], x[1]);
  add_square<true>(solved[0], keys + Triangles::place(1, 0), lane, x[2], x[3]);
  add_square<true>(as_left(x[2], x[3]), keys + Triangles::place(1, 1), lane, x[2], x[3]);
  solved[1] = as_left(x[2], x[3]);
  const auto remains = [&](int token) { return gates.beta[token] * gates.until[token]; };
  const ValueOperands updates[1] = {
      {scaled(x[0], x[1], 0, lane, remains), scaled(x[2], x[3], 16, lane, remains)}};

  add_square<true>(solved[0], queries, lane, read[0], read[1]);
  add_square<true>(solved[0], queries + Triangles::place(1, 0), lane, read[2], read[3]);
  add_square<true>(solved[1], queries + Triangles::place(1, 1), lane, read[2], read[3]);
  store_values({as_left(read[0], read[1]), as_left(read[2], read[3])}, rows, lane, y);
  if (a.corrections.data != nullptr) {
    TilePlace<kernel_bf16> corrections = y;
    corrections.view = a.corrections;
    store_values(solved, rows, lane, corrections);
  }
  state.add<1>(gates.whole(), updates, {chunk.k}, lane);
}

__device__ __forceinline__ void solve_backward(const Scan& a, const Chunk& chunk, State& state,
                                               kernel_bf16* rows, int lane,
                                               const TilePlace<kernel_bf16>& corrections) {
  const Gates<kTokens>& gates = chunk.gates;
  const kernel_bf16 *keys = chunk.triangles.keys, *queries = chunk.triangles.queries;
  const int64_t end = corrections.begin + kTokens;
  if (end % kGroup == 0 || end >= a.gates.time) {
    state.leave(state_of_group(a, corrections.begin), lane);
  }
  Values results[1] = {};
  state.read<1>({chunk.k}, lane, results);
  Values& x = results[0];
  visit_tokens(lane, x, [&](float& each, int token) { each *= gates.until[token]; });
  ValueOperands douts;
#pragma unroll
  for (int square = 0; square < 2; ++square) {
    douts[square] =
        load_left_transposed(chunk.values + square * 16 * kStride + state.value, kStride, lane);
  }
  add_square<false>(douts[0], queries, lane, x[0], x[1]);
  add_square<false>(douts[1], queries + Triangles::place(1, 0), lane, x[0], x[1]);
  add_square<false>(douts[1], queries + Triangles::place(1, 1), lane, x[2], x[3]);

  add_square<false>(as_left(x[2], x[3]), keys + Triangles::place(1, 1), lane, x[2], x[3]);
  add_square<false>(as_left(x[2], x[3]), keys + Triangles::place(1, 0), lane, x[0], x[1]);
  add_square<false>(as_left(x[0], x[1]), keys, lane, x[0], x[1]);
  const auto written = [&](int token) { return left_factor(gates.beta[token]); };
  store_values({scaled(x[0], x[1], 0, lane, written), scaled(x[2], x[3], 16, lane, written)}, rows,
               lane, corrections);

  const auto read = [&](int token) { return a.query_scale * gates.since[token]; };
  const auto expected = [&](int token) { return -gates.beta[token] * gates.since[token]; };
  const ValueOperands updates[2] = {
      {scaled(douts[0], 0, lane, read), scaled(douts[1], 16, lane, read)},
      {scaled(x[0], x[1], 0, lane, expected), scaled(x[2], x[3], 16, lane, expected)}};
  state.add<2>(gates.whole(), updates, {chunk.q, chunk.k}, lane);
}

template <bool backward>
__global__ __launch_bounds__(kThreads,
                             2) void delta_attention_fast_scan(const __grid_constant__ Scan a) {
  SharedArena arena;
  const Layout shared(arena);
  const int chunks = static_cast<int>((a.gates.time + kTokens - 1) / kTokens);
  const auto first_of = [&](int step) {
    return static_cast<int64_t>(backward ? chunks - 1 - step : step) * kTokens;
  };
  const auto place_of = [&](const auto& view, int step) {
    using Element = std::remove_pointer_t<decltype(view.data)>;
    return TilePlace<Element>{view,
                              a.gates.mask,
                              static_cast<int64_t>(blockIdx.y),
                              first_of(step),
                              static_cast<int>(blockIdx.x),
                              0};
  };
  AsyncCopies copies;
  const auto begin = [&](int step) {
    const int stage = step % kStages * kTileSize;
    begin_copy<kTile, Preparers>(copies, shared.q + stage, place_of(a.q, step));
    begin_copy<kTile, Preparers>(copies, shared.k + stage, place_of(a.k, step));
    begin_copy<kTile, Preparers>(copies, shared.values + stage, place_of(a.values, step));
    copies.commit();
  };
  // By a warp of those that prepare that has less else to do.
  const auto make_gates = [&](int step, int lane) {
    const auto own = Gates<kTokens>::read(a.gates, blockIdx.y, static_cast<int>(blockIdx.x),
                                          first_of(step), lane);
    Gates<kTokens>(shared.gates, step % kStages).publish(own, lane);
  };

  const bool solves = threadIdx.x >= Preparers::kThreads;
  State state;
  for (auto& each : state.memory) each = {};
  state.value = static_cast<int>(threadIdx.x) / 32 % kSolvers * 16;
  if (solves && a.in != nullptr) {
    const float* from = a.in + own_state() * a.k.K * a.values.K;
    state.visit(static_cast<int>(threadIdx.x) % 32, a.k.K, a.values.K,
                [&](float& element, int64_t at) { element = from[at]; });
  }
  if (!solves && chunks > 0) {
    begin(0);
    if (threadIdx.x / 32 == 2) make_gates(0, static_cast<int>(threadIdx.x) % 32);
    copies.wait<0>();
  }
  __syncthreads();
  // A chunk is solved in the step after the one that prepares it, in which the next one is prepared
  // and the one behind that is copied.
#pragma unroll 1
  for (int step = 0; step <= chunks; ++step) {
    // Registers: what follows from the thread is not kept from step to step.
    const int thread = recomputed(static_cast<int>(threadIdx.x));
    const int warp = thread / 32, lane = thread % 32;
    state.value = warp % kSolvers * 16;
    if (solves) {
      if (step > 0) {
        const Chunk chunk(shared, step - 1);
        TilePlace<kernel_bf16> place = place_of(backward ? a.corrections : a.y, step - 1);
        place.column = state.value;
        kernel_bf16* rows = shared.rows + state.value * kSquareStride;
        if constexpr (backward) {
          solve_backward(a, chunk, state, rows, lane, place);
        } else {
          solve_forward(a, chunk, state, rows, lane, place);
        }
      }
    } else if (step < chunks) {
      const int next = recomputed(step) + 1;
      if (next < chunks) {
        begin(next);
        if (warp == 2) make_gates(next, lane);
      }
      const Chunk chunk(shared, step);
      make_triangles<backward>(chunk.q, chunk.k, chunk.gates, a.decays, a.query_scale, warp, lane,
                               chunk.triangles);
      copies.wait<0>();
    }
    __syncthreads();
  }
  if (!solves || a.out == nullptr) return;
  float* to = a.out + own_state() * a.k.K * a.values.K;
  state.visit(static_cast<int>(threadIdx.x) % 32, a.k.K, a.values.K,
              [&](const float& element, int64_t at) { to[at] = element; });
}

template <bool backward>
void run(const Scan& scan) {
  launch({"delta_attention_fast_scan",
          dim3(static_cast<unsigned>(scan.gates.heads), static_cast<unsigned>(scan.q.B)), kThreads,
          shared_bytes<Layout>()},
         delta_attention_fast_scan<backward>, scan);
}

}  // namespace

void scan_forward(const Scan& scan) {
  run<false>(scan);
}
void scan_backward(const Scan& scan) {
  run<true>(scan);
}

}  // namespace linnet::cuda::delta_attention_fast
