// Softmax attention by cuDNN: `train.backend: cudnn`, and what `linnet bench attention --cudnn`
// measures beside linnet's own. On an H200 it agrees with linnet's kernels.
#pragma once

#include <array>

#include "attention/primitives/cudnn_softmax/cuda/softmax_graph.h"
#include "core/cuda/cudnn.h"

namespace linnet::cuda {

class CudnnSoftmax {
 public:
  // Plans both passes for this thread's device, which takes seconds. Throws as GraphPlan does.
  explicit CudnnSoftmax(const SoftmaxSizes& sizes);
  struct Result {
    Tensor y;            // bf16 [B,T,H,K]
    Tensor log_sum_exp;  // f32 [B,H,T]
  };
  // Inputs: bf16 [B,T,H,K] on this thread's device. Writes the tensors of `result`.
  void forward(const Tensor& q, const Tensor& k, const Tensor& v, const Result& result) const;
  // Writes the gradients of sum(y * dy) in q, k and v.
  void backward(const Tensor& q, const Tensor& k, const Tensor& v, const Result& result,
                const Tensor& dy, const std::array<Tensor, 3>& gradients) const;

 private:
  SoftmaxForwardGraph forward_;
  SoftmaxBackwardGraph backward_;
  GraphPlan forward_plan_, backward_plan_;
};

// That of these sizes on this thread's device, planned once and kept. Throws UsageError where cuDNN
// has no kernels for them.
const CudnnSoftmax& cudnn_softmax(const SoftmaxSizes& sizes);

}  // namespace linnet::cuda
