// The read-out of LAVO (linear attention via orthogonal memory) in its factored form, on plain
// arrays: options, the reference, and the CPU kernels.
// attention/primitives/orthogonal_memory/orthogonal_memory.h has it on Variables.
//
// With a basis B [r,d] of a head, the memory after some tokens is diag(m) B where m = mean of B f_j
// over them; a query reads it as keys and values at once:
//   y_i = B^T (p * m),  p = softmax(scale * m * (B q_i))          (* element by element)
// Dropout acts on p.
// Only sums of r values are ever kept; sums of B f_j are made from sums of f_j.
#pragma once

#include <cstdint>
#include <vector>

#include "core/random.h"
#include "core/sequence_view.h"

namespace linnet {

// Whose f_j are in the memory that token i of a sequence reads:
//   completed_windows  windows of `window` positions that ended before the one that holds i
//   prefix             tokens j <= i
//   whole              all tokens (noncausal), or all tokens of the source (cross-attention)
enum class MemoryScope : uint8_t { completed_windows, prefix, whole };

struct OrthogonalMemoryOptions {
  MemoryScope scope = MemoryScope::completed_windows;
  // Positions of a window; only for completed_windows.
  int64_t window = 0;
  double scale = 1.0;
  // One memory for all heads: m = sum over heads of B_h f_h (the basis is [r, H d], split by
  // columns).
  bool shared = false;
  // Probability with which a weight of p is dropped (others are divided by 1 - dropout): the
  // weights [H r] of a token are one row of dropout_row().
  double dropout = 0;
  RandomKey dropout_key = {};
};

// The state of a sequence. M = 1 where shared, else H. Window sums of B f over windows that are
// complete and over the one that is not (outside completed_windows: zero, never read), and the
// valid tokens in each. E is T or const T.
template <typename E, typename Count>
struct OrthogonalMemoryState {
  E* completed = nullptr;   // [B,M,r]
  E* partial = nullptr;     // [B,M,r]
  Count* counts = nullptr;  // [B,2]: in `completed`, in `partial`
};

// Inputs, none owned. Where q and f have different lengths (cross-attention), the scope is whole
// and the spans are one per row, over the queries; they carry in where the state holds an encoded
// source.
template <typename T>
struct OrthogonalMemoryInputs {
  SequenceView<const T> q;  // [B,T,H,d]
  SequenceView<const T> f;  // [B,T,H,d]; cross: [B,S,H,d], S may be 0
  // Row l of head h's basis is at basis + h * basis_head_stride + l * basis_row_stride.
  const T* basis = nullptr;
  int64_t rank = 0, basis_head_stride = 0, basis_row_stride = 0;
  // 1 = valid; null: all. The contents of masked positions, NaN included, change nothing; masked
  // queries give 0, masked codes are left out of sums and counts (positions and windows go on).
  const uint8_t* query_mask = nullptr;  // [B,T]
  const uint8_t* code_mask = nullptr;   // [B,T]; cross: [B,S]
  std::vector<Span> spans;
  OrthogonalMemoryState<const T, const int64_t> state;
  // Names of the draws of dropout: numbers of the rows' examples [B] (null: the row number), and
  // the time of query 0 of the rows inside them.
  const int64_t* examples = nullptr;
  int64_t time_offset = 0;
};

// Gradients, overwritten, with the layouts of the inputs; dcompleted and dpartial are optional.
template <typename T>
struct OrthogonalMemoryGradients {
  SequenceView<T> dq, df;
  T* dbasis = nullptr;
  T* dcompleted = nullptr;
  T* dpartial = nullptr;
};

// y [B,T,H,d], and the state after the last span of every row (null members: not wanted). A query
// whose memory is empty reads 0. Bitwise the same for any number of threads. O(T r d) time per
// head; beyond y, O(T / window * r) values. Throws Error on shapes or options that do not fit.
template <typename T>
void orthogonal_memory_forward(const OrthogonalMemoryInputs<T>& in,
                               const OrthogonalMemoryOptions& options, SequenceView<T> y,
                               OrthogonalMemoryState<T, int64_t> state_out);

// The gradients of sum(y * dy) + sum(state_out * dstate_out); members of dstate_out may be null.
// Bitwise the same for any number of threads.
template <typename T>
void orthogonal_memory_backward(const OrthogonalMemoryInputs<T>& in,
                                const OrthogonalMemoryOptions& options, SequenceView<const T> dy,
                                const T* dcompleted_out, const T* dpartial_out,
                                const OrthogonalMemoryGradients<T>& gradients);

// The literal equation with dense r x d memories, one query at a time. For tests.
void orthogonal_memory_reference(const OrthogonalMemoryInputs<double>& in,
                                 const OrthogonalMemoryOptions& options, SequenceView<double> y,
                                 OrthogonalMemoryState<double, int64_t> state_out);

// How many valid tokens are in the memory that each token reads, [B,T].
template <typename T>
void orthogonal_memory_counts(const OrthogonalMemoryInputs<T>& in,
                              const OrthogonalMemoryOptions& options, int64_t* counts);

// Throws Error, naming the disagreement, unless sizes and options fit together; nothing is read
// through the views.
template <typename T>
void check_orthogonal_memory(const SequenceView<const T>& q, const SequenceView<const T>& f,
                             int64_t rank, const OrthogonalMemoryOptions& options,
                             bool one_span_a_row);

}  // namespace linnet
