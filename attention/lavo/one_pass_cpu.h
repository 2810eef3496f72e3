// Causal LAVO in one pass over the tokens, on plain arrays: the window of softmax attention, the
// memory of its outputs and their mean are computed while a tile of tokens is in the cache. So q,
// k, v and y pass through DRAM once forward, and they and their gradients once backward. The plain
// path is block_attention, orthogonal_memory and a weighted sum.
//
// A head of a row is one task, scanned in tiles of 64 tokens. Forward keeps B f and f of every
// window (2 d / window elements per token and head) and, for backward, the softmax weights and B q
// of every token (the window in whole blocks of 16, and r). Backward scans in reverse: the gradient
// of the memory is complete when a window's outputs are reached, and the gradients of keys and
// values are complete after the queries that see them. Multiply-adds per token and head, for
// windows of up to 16 and d = r = 64: 2,048 + 8,192 forward, 4,096 + 16,384 backward (window +
// memory).
#pragma once

#include <cstdint>
#include <vector>

#include "attention/primitives/orthogonal_memory/cpu.h"
#include "core/sequence_view.h"

namespace linnet {

// Wider windows do not fit a tile.
inline constexpr int64_t kLavoPassWindow = 64;

struct LavoPassOptions {
  int64_t window = 16;
  double scale = 1.0;
  // Where the memory is empty, y is the window's output; otherwise half of it.
  bool local_only = false;
  // On a device only: probability with which weights are dropped, those of the window as
  // BlockAttentionOptions says, those with which the memory is read as OrthogonalMemoryOptions.
  double dropout = 0;
  RandomKey window_key = {}, memory_key = {};
};

// Inputs, none owned. Spans do not carry in; nothing is masked.
template <typename T>
struct LavoPassInputs {
  SequenceView<const T> q, k, v;  // [B,T,H,d]
  const T* basis = nullptr;       // [H,r,d]
  int64_t rank = 0;
  // Optional [bias_heads, 2 window - 1], bias_heads = H or 1: the logit of query i and key j gains
  // bias[h, j - i + window - 1].
  const T* bias = nullptr;
  int64_t bias_heads = 0;
  std::vector<Span> spans;
};

// Sums that forward saves for backward. For every window of every span, in order: the sum of B f
// over all windows before it [windows,H,r], and the sum of its own f [windows,H,d]. For every
// token, where wanted (else null): the weights of its window, in the layout of one_pass_tile.h, and
// B q [B,H,T,r in whole vectors].
template <typename T>
struct LavoPassSums {
  T* before = nullptr;
  T* codes = nullptr;
  T* weights = nullptr;
  T* projections = nullptr;
};

// Number of windows in all spans, and numbers of elements of the last two arrays.
struct LavoPassSizes {
  int64_t windows, weights, projections;
};

// Gradients, overwritten, with the shapes of the inputs; dbias is there where bias is.
template <typename T>
struct LavoPassGradients {
  SequenceView<T> dq, dk, dv;
  T* dbasis = nullptr;
  T* dbias = nullptr;
};

// Throws Error on inputs that do not fit.
template <typename T>
LavoPassSizes lavo_pass_sizes(const LavoPassInputs<T>& in, const LavoPassOptions& options);

// y [B,T,H,d], the sums, and the state after the last span of every row, as orthogonal_memory
// carries it. Bitwise the same for any number of threads.
template <typename T>
void lavo_pass_forward(const LavoPassInputs<T>& in, const LavoPassOptions& options,
                       SequenceView<T> y, const LavoPassSums<T>& sums,
                       const OrthogonalMemoryState<T, int64_t>& state_out);

// The gradients of sum(y * dy) + sum(completed * dcompleted) + sum(partial * dpartial) of the
// state; dcompleted and dpartial may be null. `sums` as forward left them, all four. Bitwise the
// same for any number of threads.
template <typename T>
void lavo_pass_backward(const LavoPassInputs<T>& in, const LavoPassOptions& options,
                        const LavoPassSums<const T>& sums, SequenceView<const T> dy,
                        const T* dcompleted, const T* dpartial, const LavoPassGradients<T>& out);

}  // namespace linnet
