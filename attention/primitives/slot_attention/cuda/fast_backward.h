// The causal backward pass of slot attention on tensor cores: two kernels, each one pass, no sums
// across blocks (fast_queries.cu and fast_keys.cu). In the terms of fast_tiles.h, with r_tl = scale
// q_t . K~_tl, p its softmax, u_tl = do_t . V~_tl:
//
//   queries, forward in time: the memories are recomputed;
//   dr_tl = p_tl (d_tl u_tl - m_t), m_t = sum_l p_tl d_tl u_tl,   dq_t = scale sum_l dr_tl K~_tl
//
//   with d of dropout: 0, or 1 / (1 - its probability); without it 1.
//
//   keys, backward in time: with X = scale dr / c, Y = p d / c of a tile's tokens and, of what
//   comes after the tile, GK = sum X q, GV = sum Y do of every slot, dv_j = sum_l w_jl (sum_{t >=
//   j} Y_tl do_t + GV_l),   dk_j likewise of X, q and GK, da_jl = w_jl sum_{t >= j} (X_tl q_t . k_j
//   + Y_tl do_t . v_j - (dr_tl r_tl + p_tl d_tl u_tl) /
//                              c_tl)
//
// In the last sum, with r'_t = sum_l p_tl r_tl and h_t the entropy of p_t, r_tl = log p_tl + h_t +
// r'_t and p_tl d_tl u_tl = dr_tl + p_tl m_t, so that it is
//   sum X_tl (q_t . k_j - r'_t / scale) + sum Y_tl (do_t . v_j - m_t)
//     - sum (dr_tl (log p_tl + h_t + 1) + p_tl m_t (1 - d_tl)) / c_tl:
// what all keys or all values have in common is taken away before anything is rounded (of later
// tiles it is taken away after, so that their GK and GV count in two bf16 parts here), and of the
// first scan p (negative where d = 0) and dr, in bf16, and three values per token are kept,
// beside the normalizers at the beginning of every chunk, from which the second scan makes tiles as
// the first did.
//
// Bytes per token and head, N slots, widths K and V: queries 6 K + 4 V + 6 N, keys 6 K + 6 V + 8 N,
// and 12 + N / 8 each for arrays kept in f32 and f64. Operations: queries 2 * 64 * (2 K + V + 4 *
// 64) * 10/16 + 2 * 64 (3 K + 2 V), keys 2 * 64 * (2 K + 2 V + 6 * 64) * 10/16 + 8 * 64 (K + V). N
// = K = V = 64: 2344 bytes and 194,000 operations. Copies are under way while a block computes, in
// one stage (fast_queries.cu, fast_keys.h). A document that begins inside a chunk is a tile more,
// and a copy that is waited for: its operations are those of the squares and warps that it has
// tokens in, beside a chunk's sums over memories.
//
// Heads wider than 64: q . K~ and do . V~ are sums over parts of 64 columns, as are terms of
// logits. The two kernels have the first part of keys and of values; of each further part,
// run_part_reads leaves reads before the first scan, run_part_dq dq after it, and
// run_part_gradients, before the second, dk or dv and the part's sum for logits. In place of r' /
// scale and m, whose sums they must be, parts take the mean over slots of their own reads, which
// have in common what keys or values have. Bytes more for each further part: reads 4 * 64 + 6 N
// (from the second on of a side 4 N more), dq 4 * 64 + 4 N, gradients 6 * 64 + 8 N (but for the
// first, 4 N more), and 8 N once in the first kernel's and 4 N in the second's; operations 32,000,
// 32,000 and 58,000. N = 64, K = V = 128: 6,950 bytes and 405,000 operations.
//
// Few heads: blocks have splits of the sequence in both scans (fast_starts.h, fast_ends.h). What is
// made for them are memories, of which bytes and operations are those of keys, values and logits
// once more, and their gradients (run_key_sums): 2 K + 2 V + 6 N bytes and 12 + N / 8, 2 * 64 * 64
// * 10/16 + 4 * 64 (K + V) operations.
//
// More than 64 slots: both scans are launched for each 64. The first scans have softmaxes of their
// own slots, p' and dr', whose sums' logarithms are r' + h. Their shares pi of the whole softmax
// make p = pi p', m = sum pi m', dr = pi (dr' + p' (m' - m)) (run_join), after which
// run_part_dq leaves that of the first part too. Launches after the first add to the gradients of
// q, k and v that those before left, in bf16. Bytes more for each 64 slots: everything, with dq
// 8 * 64, 8 * 64 + 24 for the join and 6 * 64 for sums. N = 128, K = V = 64: 7,200 bytes and
// 452,000 operations.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast.h"
#include "attention/primitives/slot_attention/cuda/fast_dropout.h"
#include "attention/primitives/slot_attention/cuda/fast_reads.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {

using namespace detail;

// Keys and values are computed 64 columns at a time; the first ones of both in one kernel.
inline constexpr int kPart = 64;

// The common offset of each token's reads of further parts [parts,B,T,H].
struct PartOffsets {
  const float* sums;
  int parts;
  int64_t stride;

  __device__ __forceinline__ float at(int64_t token) const {
    float sum = 0;
#pragma unroll 1
    for (int part = 0; part < parts; ++part) sum += sums[part * stride + token];
    return sum;
  }
};

// A launch adds this to the call of its slots.
struct BackwardWork {
  unsigned splits = 1;  // blocks of a sequence
  bool adds = false;    // to the gradients of q, k and v that launches for other slots left
  int64_t chunks = 0;   // of a head, of all scans
  // Saved by the first scan for the second: p and dr [B,T,H,N], r' / scale, m and h [B,T,H];
  // of every chunk [H,chunks] the log normalizers before it [.,N] and the rows on which tiles
  // begin, a bit each.
  Writes probabilities, dreads;
  Reads kept_probabilities, kept_dreads;  // the same
  float *shifts, *means, *entropies;
  double* chunk_normalizers;
  int64_t* chunk_tiles;
  // For further parts, null where there are none: sums of their reads and of their terms of logits
  // before weights, [B,T,H,N], and to normalizers, [B,H,N].
  const float *other_reads, *other_dreads, *other_dlogits, *other_sums;
  PartOffsets key_offsets, value_offsets;
  // [splits,B,H,N], the gradient of log normalizers after each split, of all parts.
  const float* dsums_after;

  dim3 grid(const Call& call) const { return {blocks_for(call.memories() * call.q.H, 1), splits}; }
  // The chunk that begins with `token`; spans that begin inside a row have one more than it takes.
  __device__ __forceinline__ int64_t chunk_number(const Scan& scan, int64_t time, int token) const {
    const auto in_chunks = [](auto tokens) { return static_cast<unsigned>(tokens) / kChunk; };
    const unsigned in_row = in_chunks(scan.begin) + in_chunks(token - scan.begin);
    return scan.head * chunks + int64_t{scan.row} * in_chunks(time + kChunk - 1) + scan.number +
           in_row;
  }
};

// That of keys or that of values.
template <bool values, typename T, typename U>
__device__ __forceinline__ const auto& either(const T& of_keys, const U& of_values) {
  if constexpr (values) {
    return of_values;
  } else {
    return of_keys;
  }
}

// The tiles of a side in shared memory: keys with their queries, or values with do.
template <int M>
struct SideTiles {
  static constexpr size_t kTile = size_t{kChunk} * (M + kPadding);
  __host__ __device__ explicit SideTiles(SharedArena& arena)
      : readers(arena.take<kernel_bf16>(kTile)),
        own(arena.take<kernel_bf16>(kTile)),
        memory(arena.take<kernel_bf16>(kTile)) {}
  kernel_bf16 *readers, *own;
  kernel_bf16* memory;  // as the tile finds it
};
// Begins to copy a segment of keys or of values: columns from `first` on.
template <bool values, int M>
__device__ __forceinline__ void begin_own(AsyncCopies& copies, const SideTiles<M>& tiles,
                                          const Backward& a, const Scan& scan, int token,
                                          const ChunkSegment& segment, int first) {
  begin_rows<M>(copies, tiles.own, segment,
                {either<values>(a.k, a.v), a.key_mask, scan.row, token, scan.head, first});
}
// The same of both tiles of a side.
template <bool values, int M>
__device__ __forceinline__ void begin_side(AsyncCopies& copies, const SideTiles<M>& tiles,
                                           const Backward& a, const Scan& scan, int token,
                                           const ChunkSegment& segment, int first) {
  begin_rows<M>(copies, tiles.readers, segment,
                {either<values>(a.q, a.d_o), a.query_mask, scan.row, token, scan.head, first});
  begin_own<values>(copies, tiles, a, scan, token, segment, first);
}

// Softmaxes that first scans over kSlots slots each left -> that of all slots, in place of the
// first ones' three values.
void run_join(const Backward& call, const BackwardWork& work);

// A further part: columns from `first` on of keys with their queries, or of values with do.
struct WidePart {
  int first;
  bool accumulate;  // sums of parts have one already
  float* products;  // [B,T,H,N], added up: of reads, or of terms of logits
  float* offsets;   // [B,T,H], of this part
  float* sums;      // [B,H,N], added up: to normalizers
};

// Reads of a part, forward in time.
void run_part_reads(const Backward& call, const BackwardWork& work, bool values,
                    const WidePart& part);
// Columns from `first` on of dq, from p and dr.
void run_part_dq(const Backward& call, const BackwardWork& work, int first);
// Gradients of a part, backward in time.
void run_part_gradients(const Backward& call, const BackwardWork& work, bool values,
                        const WidePart& part);

// What splits after the first add to the gradients of memories and of log normalizers before them,
// [splits - 1,B,H,N,.]; the last one's with what comes after the sequence.
struct SplitSums {
  float *keys, *values, *sums;
};
// Of the first part; then of further ones, whose terms of normalizers are added.
void run_key_sums(const Backward& call, const BackwardWork& work, const SplitSums& to);
void run_part_sums(const Backward& call, const BackwardWork& work, bool values,
                   const WidePart& part, const SplitSums& to);

// The second scan, and what splits add, of given weights.
void run_given_keys(const Backward& call, const BackwardWork& work);
void run_given_key_sums(const Backward& call, const BackwardWork& work, const SplitSums& to);

// For each width of keys and values; of wide ones, the first part.
void run_queries(const Backward& call, const BackwardWork& work);
void run_keys(const Backward& call, const BackwardWork& work);

// Calls run with that width as std::integral_constant.
template <typename Run>
void with_width(const Backward& call, const Run& run) {
  const int64_t width = call.k.K > call.v.K ? call.k.K : call.v.K;
  if (width <= 16) return run(std::integral_constant<int, 16>{});
  if (width <= 32) return run(std::integral_constant<int, 32>{});
  return run(std::integral_constant<int, kPart>{});
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
