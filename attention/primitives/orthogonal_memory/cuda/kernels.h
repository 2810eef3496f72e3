// Plain kernels of the orthogonal memory. Codes are projected on the basis token by token, summed
// along time, and read by one warp per token and head. Internal to this folder.
#pragma once

#include "attention/primitives/common/row_dropout.h"
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
#include "core/tensor.h"

namespace linnet::cuda::orthogonal_memory_detail {

// One call as kernels read it; pointers that may be null say so. Sums are one per token, or one for
// all tokens of a row (whole, without segments).
struct Problem {
  int64_t rows, queries, codes, heads, width, rank;  // B, T, S, H, d, r
  int64_t memories;                                  // M
  bool sums_per_token;
  MemoryScope scope;
  int64_t window;
  float scale;
  const float* basis;
  int64_t basis_head_stride, basis_row_stride;
  const uint8_t *query_mask, *code_mask;  // [B,T], [B,S]; null: all count
  const int32_t *segments, *positions;    // [B,T]; null: as in OrthogonalMemoryContext
  bool drops;
  RowDropout dropout;
  const int64_t* examples;  // [B]; null: the row number
  int64_t time_offset;
  // The state before the first token (null: none) and after the last one (null: not wanted).
  const float *completed, *partial;  // [B,M,r]
  const int64_t* counts;             // [B,2]
  float *completed_out, *partial_out;
  int64_t* counts_out;
  // Gradients of the state after the last token (null: zeros) and before the first one (null: not
  // wanted).
  const float *dcompleted_out, *dpartial_out;
  float *dcompleted, *dpartial;
  // The plan: the tokens as the memory sees them.
  uint8_t* marks;   // [B,S]: kFirst, kLast, kWindowEnd
  int64_t* tokens;  // [B,T]: valid tokens in the memory that a token reads
};
inline constexpr uint8_t kFirst = 1, kLast = 2;  // of a segment
inline constexpr uint8_t kWindowEnd = 4;         // the last position of a window

// Writes the plan, and counts_out.
void make_plan(const Problem& p);
// Sums [B,T or 1,M,r] of projected codes [B,S,M,r], and those of the state after the last token.
Tensor sum_codes(const Problem& p, const Tensor& codes);
// From gradients of the reads of every token's heads, [B,T,H,r], to those of projected codes
// [B,S,M,r] and of the carried sums.
Tensor sum_gradients(const Problem& p, const Tensor& dreads);

// In place: projected queries [B,T,H,r] become the weights with which rows of the basis are added.
void read_weights(const Problem& p, const Tensor& sums, const Tensor& projected);
// In place: projected queries become their gradients, projected dy [B,T,H,r] those of the sums that
// were read; weights [B,T,H,r] receives the result of read_weights.
void read_gradients(const Problem& p, const Tensor& sums, const Tensor& projected,
                    const Tensor& dprojected, const Tensor& weights);

// Masks [B,T] of tokens are those of the problem, or null.
//
// x B^T for every head: x [B,T,H,d] -> [B,T,H,r]. Masked tokens give 0 and are never looked at.
Tensor project(const Problem& p, const Tensor& x, const uint8_t* mask);
// The same for codes, summed over the heads of a memory: [B,S,M,r].
Tensor project_codes(const Problem& p, const Tensor& f);
// x B for every head: x [B,T,H or 1,r] -> out [B,T,H,d].
void expand(const Problem& p, const Tensor& x, const uint8_t* mask, const Tensor& out);
// Sum over tokens of left^T right for every head (left [B,T,H or 1,r], right [B,T,H,d]), by runs of
// tokens: one row [elements of the basis] a run.
Tensor basis_gradients(const Problem& p, const Tensor& left, const Tensor& right,
                       const uint8_t* mask);

}  // namespace linnet::cuda::orthogonal_memory_detail
