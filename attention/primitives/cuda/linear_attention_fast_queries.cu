// The gradient of queries, forward in time; see linear_attention_fast_backward.h.
#include "attention/primitives/cuda/linear_attention_fast_backward.h"

namespace linnet::cuda::linear_attention_fast::backward_detail {
namespace {

// With S in two parts: its products and c z nearly cancel.
template <int M>
struct QueriesLayout : Layout<M> {
  __host__ __device__ explicit QueriesLayout(SharedArena& arena)
      : Layout<M>(arena), rest(arena.take<kernel_bf16>(size_t{M} * Stage<M>::kStride)) {}
  kernel_bf16* rest;  // what rounding took from the memory
};

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
__global__ __launch_bounds__(kTileThreads,
                             2) void linear_attention_fast_queries(BackwardArguments a) {
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

template <int M>
void run(const BackwardArguments& arguments) {
  launch({"linear_attention_fast_queries", blocks_for(arguments.q.B * arguments.q.H, 1),
          kTileThreads, shared_bytes<QueriesLayout<M>>()},
         linear_attention_fast_queries<M>, arguments);
}

}  // namespace

void run_queries(const BackwardArguments& arguments) {
  switch (arguments.q.K) {
    case 16:
      return run<16>(arguments);
    case 32:
      return run<32>(arguments);
    default:
      return run<64>(arguments);
  }
}

}  // namespace linnet::cuda::linear_attention_fast::backward_detail
