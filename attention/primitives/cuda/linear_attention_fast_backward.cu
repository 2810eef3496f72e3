// The causal backward passes of linear attention on tensor cores: two kernels, each one pass, no
// sums across blocks. With Q, K the features, D the divisors, Q' = Q / D:
//
//   queries, forward in time: G = tril(dY V^T) K + dY S^T, c = -D' (Q . G) / D, dQ = (G + c z) / D
//
//   keys, backward in time: dV = triu(K Q'^T) dY + K dS, dS += Q'^T dY, dz += Q'^T c,
//   dK = triu(V dY^T + 1 c^T) Q' + V dS^T + dz
//
// c is D times the gradient of the denominator: dY . y comes from the same sums as G, so that their
// difference does not depend on how y was rounded, and y need not be read or kept. S is read in two
// bf16 parts there: values that have a mean make both terms of dQ larger than it by a factor that
// grows with the length.
//
// Bytes a token and head, K features and V values: queries 6 K + 4 V, keys 6 K + 6 V, denominators
// and c 16 more; together 12 K + 10 V. Operations: 2 * 64 * (3 K + 3 V) * 10/16 + 10 K V; where
// there are denominators, 2 * 64 K * 10/16 for prefix sums of keys and 2 K V for the second part of
// S more. K = V = 64: 1400 bytes and 85,000 operations. Predicted, never measured: for batch 16, 12
// heads, 8192 tokens, width 64 on an H200, 466 us at 4.8 TB/s (520 us at the 4.3 that a copy
// reaches) and 361 us of tensor cores at 370 TFLOP/s, so that memory bounds it.
#include "attention/primitives/cuda/linear_attention_fast.h"
#include "attention/primitives/cuda/linear_attention_tiles.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace linear_attention_detail;

struct Arguments {
  Reads q, k, v, dy;
  Writes dq, dk, dv;
  const uint8_t* query_mask;
  const uint8_t* key_mask;
  // Of queries: S and z before the first token. Of keys: their gradients after the last one.
  StatePointers<const float> in;
  StatePointers<float> out;   // of keys: the gradients of S and z before the first token
  const float* denominators;  // null: nothing is divided
  float* corrections;         // c [B,T,H]
  FeatureMap map;
  float scale;
  Division division;
};

// dphi/dx from phi(x) alone.
__device__ __forceinline__ float slope_of(FeatureMap map, float value) {
  if (map == FeatureMap::elu1) return value < 1 ? value : 1.0f;
  if (map == FeatureMap::relu) return value > 0 ? 1.0f : 0.0f;
  return 1.0f;
}

// A chunk's tiles; two stages of them by turns.
template <int M>
struct Stage {
  static constexpr int kStride = M + kPadding;
  kernel_bf16 *q, *k, *v, *dy;

  __device__ __forceinline__ Stage turn(int64_t count) const {
    const int64_t on = count % 2 * kChunk * kStride;
    return {q + on, k + on, v + on, dy + on};
  }
};

template <int M>
struct Layout {
  static constexpr size_t kTiles = size_t{2} * kChunk * Stage<M>::kStride;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(kTiles), arena.take<kernel_bf16>(kTiles),
               arena.take<kernel_bf16>(kTiles), arena.take<kernel_bf16>(kTiles)},
        memory(arena.take<kernel_bf16>(size_t{M} * Stage<M>::kStride)),
        mass(arena.take<float>(M)),
        corrections(arena.take<float>(kChunk)) {}
  Stage<M> stages;
  kernel_bf16* memory;  // S or dS as the chunk finds it
  float* mass;          // z or dz
  float* corrections;   // c of the chunk
};

// That of the queries, whose dY S^T and c z nearly cancel: S comes in two parts.
template <int M>
struct QueriesLayout : Layout<M> {
  __host__ __device__ explicit QueriesLayout(SharedArena& arena)
      : Layout<M>(arena), rest(arena.take<kernel_bf16>(size_t{M} * Stage<M>::kStride)) {}
  kernel_bf16* rest;  // what rounding took from the memory
};

// Two neighbouring numbers of row lane / 4 + 8 half of a warp's rows, as results have them.
__device__ __forceinline__ uint32_t pair_at(const kernel_bf16* rows, int stride, int lane, int half,
                                            int j) {
  return *reinterpret_cast<const uint32_t*>(rows + (lane / 4 + 8 * half) * stride + 8 * j +
                                            lane % 4 * 2);
}

// A left operand of ones, on and below the diagonal only where `triangle`.
__device__ __forceinline__ LeftFragment ones_until(bool triangle, int lane) {
  constexpr uint32_t kBoth = 0x3F803F80u;
  if (!triangle) return {{kBoth, kBoth, kBoth, kBoth}};
  const int row = lane / 4, column = lane % 4 * 2;
  const uint32_t edge = (column <= row ? 0x3F80u : 0u) | (column + 1 <= row ? 0x3F800000u : 0u);
  return {{edge, kBoth, 0, edge}};
}

// sums += left memory^T.
template <int M>
__device__ __forceinline__ void multiply_memory(const LeftFragment (&left)[M / 16],
                                                const kernel_bf16* memory, int lane,
                                                ResultFragment (&sums)[M / 8]) {
  constexpr int kStride = Stage<M>::kStride;
#pragma unroll
  for (int j = 0; j < M / 16; ++j) {
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments right =
          load_right_transposed(memory + j * 16 * kStride + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half)
        multiply(left[i], right.halves[half], sums[2 * j + half]);
    }
  }
}

// G of a warp's 16 tokens, the memory in one part or in two.
template <int M>
__device__ __forceinline__ void gather_gradients(const Stage<M>& stage,
                                                 const QueriesLayout<M>& shared, bool two_parts,
                                                 int warp, int lane,
                                                 ResultFragment (&sums)[M / 8]) {
  constexpr int kStride = Stage<M>::kStride;
  LeftFragment readers[M / 16];
#pragma unroll
  for (int i = 0; i < M / 16; ++i) {
    readers[i] = load_left(stage.dy + warp * 16 * kStride + i * 16, kStride, lane);
  }
#pragma unroll 1  // registers
  for (int square = 0; square <= warp; ++square) {
    ResultFragment weights[2] = {};
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments values =
          load_right_transposed(stage.v + square * 16 * kStride + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) multiply(readers[i], values.halves[half], weights[half]);
    }
    if (square == warp) cut_triangle<true>(weights, lane);
    const LeftFragment left = as_left(weights[0], weights[1]);
#pragma unroll
    for (int j = 0; j < M / 16; ++j) {
      const RightFragments keys =
          load_right(stage.k + square * 16 * kStride + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) multiply(left, keys.halves[half], sums[2 * j + half]);
    }
  }
  multiply_memory<M>(readers, shared.memory, lane, sums);
  if (two_parts) multiply_memory<M>(readers, shared.rest, lane, sums);
}

// G <- G + c z, with z the sum of all keys up to the token.
template <int M>
__device__ __forceinline__ void add_corrections(const Stage<M>& stage, const float* mass, int warp,
                                                int lane, const float (&corrections)[2],
                                                ResultFragment (&sums)[M / 8]) {
  constexpr int kStride = Stage<M>::kStride;
#pragma unroll
  for (int j = 0; j < M / 16; ++j) {
    ResultFragment keys[2] = {};
#pragma unroll 1
    for (int square = 0; square <= warp; ++square) {
      const LeftFragment left = ones_until(square == warp, lane);
      const RightFragments right =
          load_right(stage.k + square * 16 * kStride + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) multiply(left, right.halves[half], keys[half]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = j * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
      sums[2 * j + i / 4].values[i % 4] +=
          corrections[i % 4 / 2] * (keys[i / 4].values[i % 4] + mass[column]);
    }
  }
}

// The gradient of queries, forward in time; writes the corrections that the keys need.
template <int M>
__global__ __launch_bounds__(kTileThreads, 2) void linear_attention_fast_queries(Arguments a) {
  constexpr int kStride = Stage<M>::kStride;
  SharedArena arena;
  const QueriesLayout<M> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(a.q.H), key_heads = static_cast<int>(a.k.H);
  const int head = static_cast<int>(blockIdx.x % heads), key_head = head / (heads / key_heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T;
  const bool normalised = a.denominators != nullptr;

  AsyncCopies copies;
  uint32_t query_counts = 0, key_counts = 0;
  const auto begin = [&](int64_t token) {
    const Stage<M> stage = shared.stages.turn(token / kChunk);
    query_counts = begin_copy<M>(copies, stage.q, {a.q, a.query_mask, row, token, head, 0});
    key_counts = begin_copy<M>(copies, stage.k, {a.k, a.key_mask, row, token, key_head, 0});
    begin_copy<M>(copies, stage.v, {a.v, a.key_mask, row, token, key_head, 0});
    begin_copy<M>(copies, stage.dy, {a.dy, a.query_mask, row, token, head, 0});
    copies.commit();
  };
  const auto one = [](int) { return 1.0f; };

  StateTile<M, M> state;
  state.load(a.in, row * key_heads + key_head, 0, static_cast<int>(a.v.K));
  state.publish(shared.memory);
  if (normalised) state.publish_rest(shared.rest);
  state.store_mass(shared.mass);
  if (time > 0) begin(0);
  for (int64_t token = 0; token < time; token += kChunk) {
    const Stage<M> stage = shared.stages.turn(token / kChunk);
    copies.wait<0>();
    map_features<M>(stage.q, query_counts, a.map, a.scale, one);
    map_features<M>(stage.k, key_counts, a.map, 1, one);
    __syncthreads();  // this chunk and the state are there; the other stage is free
    if (token + kChunk < time) begin(token + kChunk);

    ResultFragment sums[M / 8] = {};
    gather_gradients<M>(stage, shared, normalised, warp, lane, sums);
    kernel_bf16* queries = stage.q + warp * 16 * kStride;
    float factors[2] = {1, 1};  // 1 / D
    if (normalised) {
      float corrections[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float along = 0;
#pragma unroll
        for (int j = 0; j < M / 8; ++j) {
          const uint32_t pair = pair_at(queries, kStride, lane, half, j);
          along += low_of(pair) * sums[j].values[2 * half] +
                   high_of(pair) * sums[j].values[2 * half + 1];
        }
        along += __shfl_xor_sync(~0u, along, 1);
        along += __shfl_xor_sync(~0u, along, 2);
        const int64_t reader = token + warp * 16 + half * 8 + lane / 4;
        const int64_t at = (row * time + reader) * heads + head;
        const float x = reader < time ? a.denominators[at] : 1.0f;
        factors[half] = 1 / a.division.divisor(x);
        corrections[half] = a.division.passes(x) ? -along * factors[half] : 0.0f;
        if (reader < time && lane % 4 == 0) a.corrections[at] = corrections[half];
      }
      add_corrections<M>(stage, shared.mass, warp, lane, corrections, sums);
    }
#pragma unroll
    for (int j = 0; j < M / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = pair_at(queries, kStride, lane, half, j);
        const float factor = factors[half] * a.scale;
        sums[j].values[2 * half] *= slope_of(a.map, low_of(pair)) * factor;
        sums[j].values[2 * half + 1] *= slope_of(a.map, high_of(pair)) * factor;
      }
    }
    store_rows<M>(sums, queries, kStride, lane,
                  {a.dq, a.query_mask, row, token + warp * 16, head, 0});
    state.template add<true>(stage.k, stage.v);
    __syncthreads();  // nobody reads the state any more
    state.publish(shared.memory);
    if (normalised) state.publish_rest(shared.rest);
    state.store_mass(shared.mass);
  }
}

// What a chunk's own queries, and where `begins` all later ones, say to a warp's 16 keys and
// values.
template <int M>
__device__ __forceinline__ void add_key_gradients(const Stage<M>& stage, const Layout<M>& shared,
                                                  bool begins, int warp, int lane,
                                                  ResultFragment (&dkeys)[M / 8],
                                                  ResultFragment (&dvalues)[M / 8]) {
  constexpr int kStride = Stage<M>::kStride;
  LeftFragment keys[M / 16], values[M / 16];
#pragma unroll
  for (int i = 0; i < M / 16; ++i) {
    keys[i] = load_left(stage.k + warp * 16 * kStride + i * 16, kStride, lane);
    values[i] = load_left(stage.v + warp * 16 * kStride + i * 16, kStride, lane);
  }
#pragma unroll 1  // registers
  for (int square = warp; square < kChunk / 16; ++square) {
    const kernel_bf16* q = stage.q + square * 16 * kStride;
    const kernel_bf16* dy = stage.dy + square * 16 * kStride;
    ResultFragment weights[2] = {}, gradients[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      gradients[i / 4].values[i % 4] =
          shared.corrections[square * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2];
    }
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments queries = load_right_transposed(q + i * 16, kStride, lane);
      const RightFragments readers = load_right_transposed(dy + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(keys[i], queries.halves[half], weights[half]);
        multiply(values[i], readers.halves[half], gradients[half]);
      }
    }
    if (square == warp) {
      cut_triangle<false>(weights, lane);
      cut_triangle<false>(gradients, lane);
    }
    const LeftFragment weight = as_left(weights[0], weights[1]);
    const LeftFragment gradient = as_left(gradients[0], gradients[1]);
#pragma unroll
    for (int j = 0; j < M / 16; ++j) {
      const RightFragments readers = load_right(dy + j * 16, kStride, lane);
      const RightFragments queries = load_right(q + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(weight, readers.halves[half], dvalues[2 * j + half]);
        multiply(gradient, queries.halves[half], dkeys[2 * j + half]);
      }
    }
  }
  if (!begins) return;
#pragma unroll
  for (int j = 0; j < M / 16; ++j) {
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments state =
          load_right(shared.memory + i * 16 * kStride + j * 16, kStride, lane);
      const RightFragments transposed =
          load_right_transposed(shared.memory + j * 16 * kStride + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(keys[i], state.halves[half], dvalues[2 * j + half]);
        multiply(values[i], transposed.halves[half], dkeys[2 * j + half]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      dkeys[2 * j + i / 4].values[i % 4] += shared.mass[j * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2];
    }
  }
}

// The gradients of keys, values and the carried state, backward in time. A block has one key head
// and visits its query heads in turn, chunk by chunk.
template <int M>
__global__ __launch_bounds__(kTileThreads, 2) void linear_attention_fast_keys(Arguments a) {
  constexpr int kStride = Stage<M>::kStride;
  using Part = TilePart<M>;
  SharedArena arena;
  const Layout<M> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), key_heads = static_cast<int>(a.k.H);
  const int key_head = static_cast<int>(blockIdx.x % key_heads), group = heads / key_heads;
  const int64_t row = blockIdx.x / key_heads, time = a.q.T, number = row * key_heads + key_head;
  const int64_t steps = (time + kChunk - 1) / kChunk * group;

  AsyncCopies copies;
  uint32_t query_counts = 0, key_counts = 0;
  float factors[Part::kCount];  // 1 / D of this thread's parts of queries
  float correction = 0;         // c of token number `thread` of the chunk
  const auto first_token = [&](int64_t step) { return (steps - 1 - step) / group * kChunk; };
  const auto begin = [&](int64_t step) {
    const Stage<M> stage = shared.stages.turn(step);
    const int64_t token = first_token(step);
    const int head = key_head * group + static_cast<int>(step % group);
    query_counts = begin_copy<M>(copies, stage.q, {a.q, a.query_mask, row, token, head, 0});
    key_counts = begin_copy<M>(copies, stage.k, {a.k, a.key_mask, row, token, key_head, 0});
    begin_copy<M>(copies, stage.v, {a.v, a.key_mask, row, token, key_head, 0});
    begin_copy<M>(copies, stage.dy, {a.dy, a.query_mask, row, token, head, 0});
    copies.commit();
    if (a.denominators == nullptr) return;
    const int64_t first = (row * time + token) * heads + head;
#pragma unroll
    for (int i = 0; i < Part::kCount; ++i) {
      const bool inside = (query_counts >> i & 1) != 0;
      factors[i] = inside ? a.denominators[first + Part::row(i) * heads] : 1.0f;
    }
    const bool inside = thread < kChunk && token + thread < time;
    correction = inside ? a.corrections[first + thread * heads] : 0.0f;
  };

  StateTile<M, M> state;
  state.load({a.in.memory, nullptr}, number, 0, static_cast<int>(a.v.K));
  state.publish(shared.memory);
  float mass = 0;  // dz of feature number `thread`
  if (thread < M) {
    if (a.in.mass != nullptr) mass = a.in.mass[number * M + thread];
    shared.mass[thread] = mass;
  }
  ResultFragment dkeys[M / 8] = {}, dvalues[M / 8] = {};
  if (steps > 0) begin(0);
  for (int64_t step = 0; step < steps; ++step) {
    const Stage<M> stage = shared.stages.turn(step);
    const bool begins = step % group == 0, ends = step % group == group - 1;
    copies.wait<0>();
    const auto factor = [&](int i) {
      return a.denominators == nullptr ? 1.0f : 1 / a.division.divisor(factors[i]);
    };
    map_features<M>(stage.q, query_counts, a.map, a.scale, factor);
    map_features<M>(stage.k, key_counts, a.map, 1, [](int) { return 1.0f; });
    if (thread < kChunk) shared.corrections[thread] = correction;
    __syncthreads();  // this chunk and the state are there; the other stage is free
    if (step + 1 < steps) begin(step + 1);

    add_key_gradients<M>(stage, shared, begins, warp, lane, dkeys, dvalues);
    if (ends) {
      kernel_bf16* keys = stage.k + warp * 16 * kStride;
#pragma unroll
      for (int j = 0; j < M / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t pair = pair_at(keys, kStride, lane, half, j);
          dkeys[j].values[2 * half] *= slope_of(a.map, low_of(pair));
          dkeys[j].values[2 * half + 1] *= slope_of(a.map, high_of(pair));
        }
      }
      const int64_t token = first_token(step) + warp * 16;
      store_rows<M>(dkeys, keys, kStride, lane, {a.dk, a.key_mask, row, token, key_head, 0});
      store_rows<M>(dvalues, stage.v + warp * 16 * kStride, kStride, lane,
                    {a.dv, a.key_mask, row, token, key_head, 0});
#pragma unroll
      for (int j = 0; j < M / 8; ++j) dkeys[j] = dvalues[j] = {};
    }
    state.template add<false>(stage.q, stage.dy);
    if (a.denominators != nullptr && thread < M) {
      for (int token = 0; token < kChunk; ++token) {
        mass += shared.corrections[token] * load(stage.q + token * kStride + thread);
      }
    }
    __syncthreads();  // nobody reads the state any more
    if (ends) {
      state.publish(shared.memory);
      if (thread < M) shared.mass[thread] = mass;
    }
  }
  state.store(a.out, number, 0, static_cast<int>(a.v.K));
  if (a.out.mass != nullptr && thread < M) a.out.mass[number * M + thread] = mass;
}

template <int M>
void run(const Backward& call) {
  Arguments a{};
  a.q = call.q;
  a.k = call.k;
  a.v = call.v;
  a.dy = call.dy;
  a.dq = call.dq;
  a.dk = call.dk;
  a.dv = call.dv;
  a.query_mask = call.query_mask;
  a.key_mask = call.key_mask;
  a.in = {call.state_in.memory, call.state_in.mass};
  a.denominators = call.options.normalizer == Normalizer::none ? nullptr : call.denominators;
  a.corrections = call.corrections;
  a.map = call.options.feature_map;
  a.scale = static_cast<float>(call.options.query_scale);
  a.division = division_of(call.options);
  launch({"linear_attention_fast_queries", blocks_for(call.q.B * call.q.H, 1), kTileThreads,
          shared_bytes<QueriesLayout<M>>()},
         linear_attention_fast_queries<M>, a);
  a.in = {call.dstate_out.memory, call.dstate_out.mass};
  a.out = {call.dstate_in.memory, call.dstate_in.mass};
  launch({"linear_attention_fast_keys", blocks_for(call.q.B * call.k.H, 1), kTileThreads,
          shared_bytes<Layout<M>>()},
         linear_attention_fast_keys<M>, a);
}

}  // namespace

bool has_backward(int64_t features, int64_t values) {
  return features < 128 && has_forward(features, values) && values <= features;
}

void causal_backward(const Backward& call) {
  switch (call.q.K) {
    case 16:
      return run<16>(call);
    case 32:
      return run<32>(call);
    default:
      return run<64>(call);
  }
}

}  // namespace linnet::cuda::linear_attention_fast
