// The gradients of keys, values and the carried state, backward in time; see
// linear_attention_fast_backward.h.
#include "attention/primitives/cuda/linear_attention_fast_backward.h"

namespace linnet::cuda::linear_attention_fast::backward_detail {
namespace {

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
__global__ __launch_bounds__(kTileThreads, 2) void linear_attention_fast_keys(BackwardArguments a) {
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
void run(const BackwardArguments& arguments) {
  launch({"linear_attention_fast_keys", blocks_for(arguments.q.B * arguments.k.H, 1), kTileThreads,
          shared_bytes<Layout<M>>()},
         linear_attention_fast_keys<M>, arguments);
}

}  // namespace

void run_keys(const BackwardArguments& arguments) {
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
