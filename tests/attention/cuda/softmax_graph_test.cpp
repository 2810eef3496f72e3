// The graphs of operations that cuDNN is asked for, computed one operation after the other in
// double: result, log-sum-exp and gradients are those of softmax attention, and the strides say
// where [B,T,H,K] has them.
#include "attention/primitives/cudnn_softmax/cuda/softmax_graph.h"

#include <gtest/gtest.h>

#include <cmath>

#include "attention/primitives/block_attention/block_attention.h"
#include "core/cuda/emulation/computed_graph.h"
#include "tests/cuda_helpers.h"

namespace linnet::cuda {
namespace {

using emulation::ComputedGraph;

void expect_attention(const SoftmaxSizes& s) {
  const Shape shape{s.B, s.T, s.H, s.K};
  std::vector<Variable> leaves;
  for (const char* name : {"q", "k", "v"}) {
    leaves.emplace_back(test::random_tensor(shape, name), true);
  }
  const Tensor dy = test::random_tensor(shape, "dy");
  BlockAttentionContext context;
  context.options.causal = s.causal;
  context.options.scale = s.scale.value_or(1 / std::sqrt(static_cast<double>(s.K)));
  const Variable y = block_attention({leaves[0], leaves[1], leaves[2], {}, {}, {}}, context);
  backward({y}, {dy});
  const auto input = [&](size_t i) { return leaves[i].value().to_vector<double>(); };
  // The scale is a float.
  constexpr double kTolerance = 1e-6;
  const SoftmaxForwardGraph forward = softmax_forward_graph(s);
  const ComputedGraph once(forward.graph,
                           {{forward.q, input(0)}, {forward.k, input(1)}, {forward.v, input(2)}});
  EXPECT_CLOSE(Tensor::from(once[forward.y], shape), y.value(), kTolerance);
  const SoftmaxBackwardGraph back = softmax_backward_graph(s);
  EXPECT_NE(back.dq_sums.has_value(), s.deterministic);
  const ComputedGraph again(back.graph, {{back.q, input(0)},
                                         {back.k, input(1)},
                                         {back.v, input(2)},
                                         {back.y, once[forward.y]},
                                         {back.log_sum_exp, once[forward.log_sum_exp]},
                                         {back.dy, dy.to_vector<double>()}});
  EXPECT_CLOSE(Tensor::from(again[back.dq], shape), leaves[0].grad(), kTolerance);
  EXPECT_CLOSE(Tensor::from(again[back.dk], shape), leaves[1].grad(), kTolerance);
  EXPECT_CLOSE(Tensor::from(again[back.dv], shape), leaves[2].grad(), kTolerance);
}

TEST(CudaSoftmaxGraph, ComputesAttentionAndItsGradients) {
  for (const bool causal : {false, true}) {
    for (const bool deterministic : {false, true}) {
      expect_attention({2, 9, 3, 4, causal, deterministic});
      expect_attention({1, 2, 1, 8, causal, deterministic, 0.2});
    }
  }
}

// Where cuDNN takes attention for what it is: nothing of T x T is in memory.
TEST(CudaSoftmaxGraph, KeepsLogitsOutOfMemory) {
  for (const bool deterministic : {false, true}) {
    const SoftmaxSizes sizes{1, 64, 2, 16, true, deterministic};
    for (const OperationGraph& graph :
         {softmax_forward_graph(sizes).graph, softmax_backward_graph(sizes).graph}) {
      for (const GraphTensor& tensor : graph.tensors) {
        EXPECT_TRUE(!tensor.in_memory || tensor.sizes[2] != tensor.sizes[3]);
      }
    }
  }
}

}  // namespace
}  // namespace linnet::cuda
