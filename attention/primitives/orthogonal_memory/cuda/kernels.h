// Plain kernels of the orthogonal memory. Codes are projected on the basis token by token, summed
// along time, and read by one warp per token and head. Internal to this folder.
#pragma once

#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
#include "core/tensor.h"

namespace linnet::cuda::orthogonal_memory_detail {

// Sizes of a call. Sums are one per token, or one for all tokens of a row (whole, without
// segments).
struct Sizes {
  int64_t rows, queries, codes, heads, width, rank;  // B, T, S, H, d, r
  int64_t memories;                                  // M
  bool sums_per_token;
  int64_t basis_head_stride, basis_row_stride;
  MemoryScope scope;
  int64_t window;

  int64_t sums_per_row() const { return sums_per_token ? queries : 1; }
};

// The tokens of a call as the memory sees them, from data on the device.
struct Plan {
  Tensor marks;   // u8 [B,S]: kFirst, kLast, kWindowEnd
  Tensor tokens;  // i64 [B,T]: valid tokens in the memory that a token reads
};
inline constexpr uint8_t kFirst = 1, kLast = 2;  // of a segment
inline constexpr uint8_t kWindowEnd = 4;         // the last position of a window
struct PlanInputs {
  Tensor segments, positions, code_mask, counts;  // may be undefined
  int64_t time_offset;
};
// counts_out i64 [B,2] may be undefined.
void make_plan(const Sizes& sizes, const PlanInputs& in, const Plan& plan,
               const Tensor& counts_out);

// sums [B,T or 1,M,r] of projected codes [B,S,M,r], and the state after the last token (undefined
// tensors: none carried in, none wanted).
struct CarriedSums {
  Tensor completed, partial;
};
void sum_codes(const Sizes& sizes, const Plan& plan, const Tensor& codes, const CarriedSums& in,
               const Tensor& sums, const CarriedSums& out);
// From gradients of the reads of every token's heads, [B,T,H,r], to those of projected codes and of
// the carried sums.
void sum_gradients(const Sizes& sizes, const Plan& plan, const Tensor& dreads,
                   const CarriedSums& dout, const Tensor& dcodes, const CarriedSums& din);

// In place: projected queries [B,T,H,r] become the weights with which rows of the basis are added.
void read_weights(const Sizes& sizes, const Plan& plan, const OrthogonalMemoryContext& context,
                  const Tensor& sums, const Tensor& projected);
// In place: projected queries become their gradients, projected dy [B,T,H,r] those of the sums that
// were read; weights [B,T,H,r] receives the result of read_weights.
void read_gradients(const Sizes& sizes, const Plan& plan, const OrthogonalMemoryContext& context,
                    const Tensor& sums, const Tensor& projected, const Tensor& dprojected,
                    const Tensor& weights);

// x B^T for every head: x [B,T,H,d] -> [B,T,H,r]. Masked tokens give 0 and are never looked at.
Tensor project(const Sizes& sizes, const Tensor& x, const Tensor& mask, const Tensor& basis);
// The same for codes, summed over the heads of a memory: [B,S,M,r].
Tensor project_codes(const Sizes& sizes, const Tensor& f, const Tensor& mask, const Tensor& basis);
// x B for every head: x [B,T,H or 1,r] -> out [B,T,H,d].
void expand(const Sizes& sizes, const Tensor& x, const Tensor& mask, const Tensor& basis,
            const Tensor& out);
// Sum over tokens of left^T right for every head (left [B,T,H or 1,r], right [B,T,H,d]), by runs of
// tokens: one row [elements of the basis] a run.
Tensor basis_gradients(const Sizes& sizes, const Tensor& left, const Tensor& right,
                       const Tensor& mask);

}  // namespace linnet::cuda::orthogonal_memory_detail
