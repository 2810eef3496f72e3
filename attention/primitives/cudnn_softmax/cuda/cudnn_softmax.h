// Softmax attention by cuDNN, which `linnet bench attention --cudnn` measures beside linnet's own.
// Models never use it. On an H200 it agrees with linnet's kernels.
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
  // Inputs: bf16 [B,T,H,K] on this thread's device.
  Result forward(const Tensor& q, const Tensor& k, const Tensor& v) const;
  // The gradients of sum(y * dy) in q, k and v.
  std::array<Tensor, 3> backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Result& result, const Tensor& dy) const;

 private:
  SoftmaxSizes sizes_;
  SoftmaxForwardGraph forward_;
  SoftmaxBackwardGraph backward_;
  GraphPlan forward_plan_, backward_plan_;
};

}  // namespace linnet::cuda
