// The causal backward passes with a decay per channel on tensor cores: two kernels, each one pass
// (fast_channels_queries.cu and fast_channels_keys.cu). With b the sums of log-decays and A the
// weights of the forward pass,
//
//   queries, forward in time:  dA = tril(dY V^T), dq_ic = scale (sum_j dA_ij k_jc exp(b_ic - b_jc)
//     + exp(b_ic) (dY S^T)_ic)
//   keys, backward in time:  dV = A^T dY + (K exp(b_last - b)) dS, dk_jc = sum_i dA_ij scale q_ic
//     exp(b_ic - b_jc) + exp(b_last - b_jc) (V dS^T + dz)_jc, dS <- exp(b_last) dS + sum_i scale
//     q_i exp(b_i) dy_i^T
//
// Decays are on the columns of results here: a warp's sums start with the state, decay in f32 from
// the tokens of one warp to those of the next, and are multiplied by the decay inside its own 16
// tokens at the end. Pairs inside those are summed in f32, a lane two channels, every key (or
// query) decaying from token to token.
//
// The gradient of g_t is the sum over pairs of a query from t on and a key before t: that of a
// later token plus the terms q . dq - k . dk between. Both kernels take q and k as rounded for
// products with other warps' tokens, so that the terms of a pair inside a chunk are equal; rounding
// remains of pairs of different chunks, and the sum begins again every kDecayAnchorTokens with the
// rows of S . dS + z . dz.
//
// Bytes per token and head: queries 8 K + 4 V, keys 10 K + 6 V, and for the gradients of log-decays
// 14 K and K V / 64 for S at anchors. K = V = 64: 1,792 bytes and 960.
#pragma once

#include "attention/primitives/linear_attention/cuda/fast_channels_tiles.h"

namespace linnet::cuda::linear_attention_fast::channels_detail {

// Of the gradients of log-decays; null: not wanted.
struct ChannelWrites {
  float* dlog_decay = nullptr;  // [B,T,H,K]
  float* terms = nullptr;       // scratch [B,T,H,K]: those of queries
  // Scratch [anchors * B,H,K,V] and [anchors * B,H,K]: S and z before tokens 512, 1024, ... and
  // after the last one.
  LinearAttentionState<float> states;
};
// The number of the state before token `boundary`, or after the last one.
__host__ __device__ inline int64_t anchor_of(int64_t boundary, int64_t time) {
  return ((boundary < time ? boundary : time) - 1) / kDecayAnchorTokens;
}

// The gradients of a warp's weights for its own tokens, [16][kPairStride] in shared memory: rows
// are queries, or keys.
inline constexpr int kPairStride = 20;
inline constexpr size_t kPairs = size_t{kChunk} * kPairStride;
// Half of a warp's sums [8][kStride], on their way to lanes that have channels.
inline constexpr size_t kHalfSums = size_t{kChunk} / 2 * kStride;

struct alignas(16) Four {
  float values[4];
};

__device__ __forceinline__ void put_pairs(const ResultFragment (&square)[2], int lane,
                                          float* pairs) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      *reinterpret_cast<Both*>(pairs + (lane / 4 + 8 * row) * kPairStride + half * 8 +
                               lane % 4 * 2) = {square[half].values[2 * row],
                                                square[half].values[2 * row + 1]};
    }
  }
}

// Rows 8 `half` to 8 half + 7 of a warp's sums; everyone's may be read after it.
template <int half>
__device__ __forceinline__ void put_half(const ResultFragment (&sums)[kWidth / 8], int lane,
                                         float* to) {
  __syncwarp();  // what was there has been read
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    *reinterpret_cast<Both*>(to + lane / 4 * kStride + 8 * j + lane % 4 * 2) = {
        sums[j].values[2 * half], sums[j].values[2 * half + 1]};
  }
  __syncwarp();
}

// sums += left state^T, of which columns are channels.
__device__ __forceinline__ void multiply_state(const LeftFragment (&left)[kWidth / 16],
                                               const kernel_bf16* memory, int lane,
                                               ResultFragment (&sums)[kWidth / 8]) {
#pragma unroll
  for (int j = 0; j < kWidth / 16; ++j) {
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
      const RightFragments right =
          load_right_transposed(memory + j * 16 * kStride + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half)
        multiply(left[i], right.halves[half], sums[2 * j + half]);
    }
  }
}

// A lane's channels of a warp's 16 tokens in device memory, those of a view and of a dense array
// [B,T,H,K]; token t has bit t of `existing` where it is in the sequence and of `counting` where it
// is valid too.
template <typename E>
struct LanePlace {
  E* first;
  int step, dense_step;  // bytes
  int64_t dense;
  uint32_t existing, counting;
  int lane;

  // By whole warps.
  __device__ __forceinline__ LanePlace(const TilePlace<E>& tile, int lane)
      : first(tile.at(tile.begin, 2 * lane)),
        step(static_cast<int>(tile.view.time_stride * sizeof(E))),
        dense_step(static_cast<int>(tile.view.H * tile.view.K * sizeof(float))),
        dense(tile.number(tile.begin) * tile.view.K + 2 * lane),
        lane(lane) {
    const int64_t left = max(tile.view.T - tile.begin, int64_t{0});
    existing = 2 * lane < tile.view.K ? static_cast<uint32_t>(bits_below(rows_left(left))) : 0;
    existing &= (1u << kOwn) - 1;
    counting = existing;
    if (tile.mask == nullptr) return;
    const int64_t token = tile.begin + lane % kOwn;
    const bool valid = token < tile.view.T && is_set(tile.mask, tile.row * tile.view.T + token);
    counting &= __ballot_sync(~0u, valid ? 1 : 0);
  }
  __device__ __forceinline__ bool exists(int t) const { return (existing >> t & 1) != 0; }
  __device__ __forceinline__ bool counts(int t) const { return (counting >> t & 1) != 0; }
  __device__ __forceinline__ E* at(int t) const { return stepped(first, t, step); }
  __device__ __forceinline__ Both* in(float* array, int t) const {
    return reinterpret_cast<Both*>(stepped(array + dense, t, dense_step));
  }
};
// Gradients of token t; 0 where it is masked.
__device__ __forceinline__ void store_lane(const LanePlace<kernel_bf16>& to, int t,
                                           const Both& gradient) {
  const uint32_t word = to.counts(t) ? packed(gradient) : 0;
  if (to.exists(t)) *reinterpret_cast<uint32_t*>(to.at(t)) = word;
}

void run_queries(const Backward& call, const ChannelWrites& writes);
void run_keys(const Backward& call, const ChannelWrites& writes);

}  // namespace linnet::cuda::linear_attention_fast::channels_detail
