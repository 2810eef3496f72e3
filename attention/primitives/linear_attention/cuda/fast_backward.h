// The causal backward passes of linear attention on tensor cores: two kernels, each one pass, no
// sums across blocks (fast_queries.cu and fast_keys.cu). With Q, K the features, D the divisors, Q'
// = Q / D:
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
// Bytes per token and head, K features and V values: queries 6 K + 4 V, keys 6 K + 6 V,
// denominators and c 16 more; together 12 K + 10 V. Operations: 2 * 64 * (3 K + 3 V) * 10/16 + 10 K
// V; where there are denominators, 2 * 64 K * 10/16 for prefix sums of keys and 2 K V for the
// second part of S more. K = V = 64: 1424 bytes and 85,000 operations.
//
// Re-weighted heads of K have 2 K features, made on the chip: 12 K + 10 V + 40 bytes, and q and k
// once more for their gradients, 4 K, from L2, where the copies of the same chunk left them (also
// where the map is elu). K = V = 64 then takes tiles of 128.
//
// Where states decay (fast_decay.h) every product of two tokens is multiplied by the decay between
// them, S and dS by the decay of a chunk, and both scans write the terms of gradients of log-decays
// (DecayWrites).
//
// Where heads are few both scan splits side by side, for which k and v, and q and dy, are read once
// more: 2 K + 2 V bytes each (fast_sums.cu). Values wider than 128 are scanned tile by tile; each
// further tile reads q and k again, 4 K bytes, and writes and reads sums of dq or dk in f32, 8
// bytes for each of 128 columns.
//
// K = V = 128: chunks have 32 tokens, and each of the four warps that share a row makes all of its
// weights: 2 * 32 * (4 * 3 + 4) * 128 * 3/4 + 12 K V = 295,000 operations, 2832 bytes.
#pragma once

#include <algorithm>

#include "attention/primitives/linear_attention/cuda/fast_parts.h"
#include "attention/primitives/linear_attention/cuda/fast_tiles.h"
#include "attention/primitives/linear_attention/cuda/slopes.h"

namespace linnet::cuda::linear_attention_fast::backward_detail {

using namespace linear_attention_detail;

// The value columns of a launch, from `first` on; values wider than tiles take several launches.
// Gradients of features are sums over all of them.
struct ValueTile {
  int first = 0;
  LaunchSums sums;
};

// Where two parts of features share a denominator: the first launch of queries leaves Q . G of the
// first part, the next one adds the second part's and leaves c, the last one takes c.
enum class FeatureStep : uint8_t { only, leaves_along, adds_along, takes_corrections };

// What a launch adds to a call. The states of a call are then those of its splits: before the first
// token of each (causal queries) or after the last one (causal keys); and noncausal queries leave
// the dstate_in of every split and head.
struct BackwardLaunch {
  int64_t split_tokens = 0;
  int64_t states = 0;  // noncausal queries: how many
  ValueTile tile;
  // For features in parts.
  bool in_parts = false;
  FeatureStep step = FeatureStep::only;
  float* along = nullptr;         // Q . G of the first part, [B,T,H]
  bool adds_proportions = false;  // gradients of proportions, to those of the part before
  LaunchSums value_sums;          // dv

  // The step of a kernel for M, a constant, features: only the widest tiles come in parts.
  template <int M>
  __device__ __forceinline__ FeatureStep step_of() const {
    return M == 128 ? step : FeatureStep::only;
  }
};

// The warps of a block for tiles of M columns: four do not have the registers for the widest state.
template <int M>
using TeamOf = std::conditional_t<M == 128, EightWarps, FourWarps>;

// Columns of results that a warp has.
template <int M>
inline constexpr int kOwnColumns = M / TeamOf<M>::kShares;

// Features that a tile must have room for: values up to 128 are one tile.
inline int64_t tile_width(int64_t features, int64_t values) {
  return std::max(features, std::min<int64_t>(values, 128));
}
inline int64_t tile_width(const BackwardLaunch& launch, int64_t features, int64_t values) {
  return launch.in_parts ? 128 : tile_width(features, values);
}

// Calls body with the launch of every tile of M of these value columns, of blocks whose rows
// have up to `tokens` tokens.
template <int M, typename Body>
void for_value_tiles(BackwardLaunch launch, int64_t values, int64_t blocks, int64_t tokens,
                     Device device, const Body& body) {
  constexpr int kTokens = TeamOf<M>::kTokens;
  const int64_t chunks = (tokens + kTokens - 1) / kTokens;
  Tensor sums;
  if (values > M) {
    sums = Tensor::empty({blocks, chunks, kTokens, M}, DType::f32, device);
    launch.tile.sums.fragments = reinterpret_cast<ResultFragment*>(pointer<float>(sums));
  }
  launch.tile.sums.chunks = launch.value_sums.chunks = chunks;
  for (int64_t first = 0; first < values; first += M) {
    launch.tile.first = static_cast<int>(first);
    launch.tile.sums.first = first == 0;
    launch.tile.sums.last = first + M >= values;
    body(launch);
    if (launch.value_sums.fragments != nullptr)
      launch.value_sums.fragments += blocks * chunks * kTokens * M / 4;
  }
}

// Room for the value_sums of so many blocks, whose rows have up to `tokens` tokens.
inline Tensor value_sums_for(int64_t values, int64_t blocks, int64_t tokens, Device device) {
  constexpr int kTokens = TeamOf<128>::kTokens;
  return Tensor::empty(
      {(values + 127) / 128, blocks, (tokens + kTokens - 1) / kTokens, kTokens, 128}, DType::f32,
      device);
}

// A chunk's tiles, double-buffered.
template <int M>
struct Stage {
  static constexpr int kStride = M + kPadding;
  kernel_bf16 *q, *k, *v, *dy;

  __device__ __forceinline__ Stage stage_of(int64_t count) const {
    const int64_t on = count % 2 * TeamOf<M>::kTokens * kStride;
    return {q + on, k + on, v + on, dy + on};
  }
};

template <int M, bool decays = false>
struct Layout {
  static constexpr size_t kTiles = size_t{2} * TeamOf<M>::kTokens * Stage<M>::kStride;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(kTiles), arena.take<kernel_bf16>(kTiles),
               arena.take<kernel_bf16>(kTiles), arena.take<kernel_bf16>(kTiles)},
        memory(arena.take<kernel_bf16>(size_t{M} * Stage<M>::kStride)),
        mass(arena.take<float>(M)),
        corrections(arena.take<float>(TeamOf<M>::kTokens)),
        begins(arena.take<uint32_t>(SegmentBits::kWords)),
        decay(arena) {}
  Stage<M> stages;
  kernel_bf16* memory;  // S or dS as the chunk finds it
  float* mass;          // z or dz
  float* corrections;   // c of the chunk
  uint32_t* begins;     // of segments
  ChunkDecay<TeamOf<M>, decays> decay;
};

// With S in two parts: its products and c z nearly cancel.
template <int M, bool decays = false>
struct QueriesLayout : Layout<M, decays> {
  __host__ __device__ explicit QueriesLayout(SharedArena& arena)
      : Layout<M, decays>(arena),
        rest(arena.take<kernel_bf16>(size_t{M} * Stage<M>::kStride)),
        partials(arena.take<float>((decays ? 2 : 1) * kPartials)) {}
  static constexpr size_t kPartials = size_t{TeamOf<M>::kShares} * TeamOf<M>::kTokens;
  kernel_bf16* rest;  // the memory's rounding errors
  float* partials;    // of sum_shares; where states decay, of two sums
};

// Sums over the columns that a warp has of features times results, of row lane / 4 and the row 8
// after.
template <int columns>
__device__ __forceinline__ void sum_products(const kernel_bf16* rows, int stride, int lane,
                                             const ResultFragment (&results)[columns / 8],
                                             float (&sums)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) {
      const uint32_t pair = *word_at(rows, stride, lane, half, j);
      sum += low_of(pair) * results[j].values[2 * half] +
             high_of(pair) * results[j].values[2 * half + 1];
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sums[half] = sum;
  }
}

// Sums over the warps of a row, by way of partials [shares][tokens] in shared memory; a barrier of
// the block.
template <typename Team>
__device__ __forceinline__ void sum_shares(float* partials, int warp, int lane, float (&sums)[2]) {
  if constexpr (Team::kShares > 1) {
    float* own = partials + Team::first_token(warp) + lane / 4;
    if (lane % 4 == 0) {
      for (int half = 0; half < 2; ++half) {
        own[Team::share(warp) * Team::kTokens + 8 * half] = sums[half];
      }
    }
    __syncthreads();  // the sums of all warps are there
    for (int half = 0; half < 2; ++half) {
      sums[half] = 0;
      for (int share = 0; share < Team::kShares; ++share) {
        sums[half] += own[share * Team::kTokens + 8 * half];
      }
    }
  }
}

// sums += left memory^T, for the columns of sums whose rows of memory begin at `memory`.
template <int M>
__device__ __forceinline__ void multiply_transposed(const LeftFragment (&left)[M / 16],
                                                    const kernel_bf16* memory, int lane,
                                                    ResultFragment (&sums)[kOwnColumns<M> / 8]) {
  constexpr int kStride = Stage<M>::kStride;
#pragma unroll
  for (int j = 0; j < kOwnColumns<M> / 16; ++j) {
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments right =
          load_right_transposed(memory + j * 16 * kStride + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(left[i], right.halves[half], sums[2 * j + half]);
      }
    }
  }
}
// sums += left memory, for the columns that begin at `memory`.
template <int M>
__device__ __forceinline__ void multiply_memory(const LeftFragment (&left)[M / 16],
                                                const kernel_bf16* memory, int lane,
                                                ResultFragment (&sums)[kOwnColumns<M> / 8]) {
  constexpr int kStride = Stage<M>::kStride;
#pragma unroll
  for (int j = 0; j < kOwnColumns<M> / 16; ++j) {
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments right = load_right(memory + i * 16 * kStride + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(left[i], right.halves[half], sums[2 * j + half]);
      }
    }
  }
}

// sums += factor of the row times `elements` of the column.
template <int columns>
__device__ __forceinline__ void add_rank_one(const float* elements, int lane,
                                             const float (&factors)[2],
                                             ResultFragment (&sums)[columns / 8]) {
#pragma unroll
  for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[j].values[i] += factors[i / 2] * elements[8 * j + lane % 4 * 2 + i % 2];
    }
  }
}

// A warp's rows of an operand [tokens][M].
template <int M>
__device__ __forceinline__ void load_rows(const kernel_bf16* rows, int lane,
                                          LeftFragment (&fragments)[M / 16]) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i) {
    fragments[i] = load_left(rows + i * 16, Stage<M>::kStride, lane);
  }
}

// Gradients of features, of which a warp has kOwnColumns, become those of x and proportions: 16
// rows from `place` on. `features` and `rows`, where they are put together, are those rows of
// tiles, which may be the same. A barrier of the block where several warps have a row.
template <int M>
__device__ __forceinline__ void store_gradients(const GradientPlace& place,
                                                const kernel_bf16* features, kernel_bf16* rows,
                                                int warp, int lane, const float (&factors)[2],
                                                ResultFragment (&results)[kOwnColumns<M> / 8]) {
  using Team = TeamOf<M>;
  constexpr int kStride = Stage<M>::kStride, kColumns = kOwnColumns<M>;
  const int column = Team::share(warp) * kColumns;
  const FeatureSource& source = place.source;
  if (!source.hides_slopes()) {
    const float scaled[2] = {factors[0] * source.scale, factors[1] * source.scale};
    apply_slopes<kColumns>(source.map, features + column, kStride, lane, scaled, results);
    TilePlace<kernel_bf16> to = place.dx;
    to.column = column;
    return store_rows<kColumns>(results, rows + column, kStride, lane, to);
  }
  __syncwarp();
  write_rows<kColumns>(results, rows + column, kStride, lane, factors);
  if constexpr (Team::kShares > 1) {
    __syncthreads();  // the columns of all warps are there
  } else {
    __syncwarp();
  }
  unmap_rows<M>(place, rows, Team::share(warp) * 32 + lane, Team::kShares * 32);
}

// The launches of the two parts of a call, whose dv are added up in `value_sums`.
inline std::array<BackwardLaunch, 2> launches_of_parts(const Tensor& along,
                                                       const Tensor& value_sums) {
  std::array<BackwardLaunch, 2> result;
  for (size_t i = 0; i < 2; ++i) {
    result[i].in_parts = true;
    result[i].adds_proportions = i > 0;
    result[i].along = pointer_or_null<float>(along);
    if (!value_sums.defined()) continue;
    result[i].value_sums = {reinterpret_cast<ResultFragment*>(pointer<float>(value_sums)), i == 0,
                            i == 1};
  }
  return result;
}

// Calls visit(i, launch) for the queries of part i, as often as the steps of FeatureStep are.
template <typename Visit>
void visit_queries(const std::array<BackwardLaunch, 2>& launches, bool normalised,
                   const Visit& visit) {
  BackwardLaunch first = launches[0], second = launches[1];
  first.value_sums = second.value_sums = {};  // those of keys
  if (normalised) {
    first.step = FeatureStep::leaves_along;
    visit(0, first);
    second.step = FeatureStep::adds_along;
    second.adds_proportions = false;
    visit(1, second);
    first.step = FeatureStep::takes_corrections;
    first.adds_proportions = true;
    visit(0, first);
  } else {
    visit(0, first);
    visit(1, second);
  }
}

// Causal passes, each for every width, in so many splits of `launch.split_tokens` tokens.
void run_queries(const Backward& call, const BackwardLaunch& launch, int64_t splits);
void run_keys(const Backward& call, const BackwardLaunch& launch, int64_t splits);

}  // namespace linnet::cuda::linear_attention_fast::backward_detail
