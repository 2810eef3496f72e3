// Softmax attention as graphs of operations, in the form that cuDNN fuses: y = P v with P the
// softmax of q k^T / sqrt(K) over the keys (causal: over those at or before the query), and its
// gradients from y, dy and the log-sum-exp of the logits (Dao 2023, FlashAttention-2).
#pragma once

#include <optional>

#include "core/cuda/operation_graph.h"

namespace linnet::cuda {

struct SoftmaxSizes {
  int64_t B = 0, T = 0, H = 0, K = 0;
  bool causal = false;
  // The same gradients in every run, on GPUs of compute capability 8 and 9: cuDNN keeps those of
  // the logits in its workspace, bf16 [B,H,T,T]. Else it adds dq in f32, in the order in which
  // blocks come.
  bool deterministic = false;
  std::optional<double> scale = {};  // of q k^T; null: 1 / sqrt(K)
};

// Ids of the tensors that are in memory: bf16 [B,T,H,K] except log_sum_exp, f32 [B,H,T].
struct SoftmaxForwardGraph {
  OperationGraph graph;
  int q = 0, k = 0, v = 0, y = 0, log_sum_exp = 0;
};
SoftmaxForwardGraph softmax_forward_graph(const SoftmaxSizes& sizes);

// The same; and the kernel's scratch: row_dots f32 [B,H,T] and, unless deterministic, dq_sums f32
// [B,H,T,K].
struct SoftmaxBackwardGraph {
  OperationGraph graph;
  int q = 0, k = 0, v = 0, y = 0, log_sum_exp = 0, dy = 0;
  int row_dots = 0, dq = 0, dk = 0, dv = 0;
  std::optional<int> dq_sums = {};
};
SoftmaxBackwardGraph softmax_backward_graph(const SoftmaxSizes& sizes);

}  // namespace linnet::cuda
