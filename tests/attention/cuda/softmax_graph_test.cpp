// The graphs of operations that cuDNN is asked for, computed one operation after the other in
// double: result, log-sum-exp and gradients are those of softmax attention, and the strides say
// where [B,T,H,K] has them.
#include "attention/primitives/cudnn_softmax/cuda/softmax_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "attention/primitives/block_attention/block_attention.h"
#include "tests/cuda_helpers.h"

namespace linnet::cuda {
namespace {

using Index = std::array<int64_t, 4>;

int64_t offset(const Index& strides, const Index& at) {
  return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
}

template <typename Body>
void for_each_index(const Index& sizes, const Body& body) {
  Index at{};
  for (at[0] = 0; at[0] < sizes[0]; ++at[0]) {
    for (at[1] = 0; at[1] < sizes[1]; ++at[1]) {
      for (at[2] = 0; at[2] < sizes[2]; ++at[2]) {
        for (at[3] = 0; at[3] < sizes[3]; ++at[3]) body(at);
      }
    }
  }
}

// Computes a graph; every tensor lies where its own strides say.
class Computed {
 public:
  Computed(const OperationGraph& graph, const std::map<int, Tensor>& inputs) : graph_(graph) {
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      const GraphTensor& tensor = graph.tensors[i];
      int64_t last = 0;
      for (size_t d = 0; d < 4; ++d) last += (tensor.sizes[d] - 1) * tensor.strides[d];
      memory_.emplace_back(static_cast<size_t>(last) + 1, tensor.value.value_or(NAN));
      if (const auto found = inputs.find(static_cast<int>(i)); found != inputs.end()) {
        EXPECT_TRUE(tensor.in_memory) << i;
        EXPECT_EQ(std::ssize(memory_.back()), found->second.elements()) << i;
        memory_.back() = found->second.to_vector<double>();
      }
    }
    for (const GraphOperation& operation : graph.operations) compute(operation);
  }
  Tensor result(int number, const Shape& shape) const {
    EXPECT_TRUE(graph_.tensors[static_cast<size_t>(number)].in_memory) << number;
    return Tensor::from(memory_[static_cast<size_t>(number)], shape);
  }

 private:
  const GraphTensor& tensor(int number) const {
    return graph_.tensors[static_cast<size_t>(number)];
  }
  double& element(int number, const Index& at) {
    return memory_[static_cast<size_t>(number)]
                  [static_cast<size_t>(offset(tensor(number).strides, at))];
  }
  // The element of an input that belongs to one of the output: sizes of 1 are repeated.
  double input(const GraphOperation& operation, size_t i, const Index& at) {
    const int number = operation.inputs[i];
    Index from{};
    for (size_t d = 0; d < 4; ++d) {
      const int64_t size = tensor(number).sizes[d];
      EXPECT_TRUE(size == 1 || size == tensor(operation.output).sizes[d]);
      if (size != 1) from[d] = at[d];
    }
    return element(number, from);
  }
  double row(const GraphOperation& operation, const Index& at) {
    const bool sum = operation.kind == GraphKind::row_sum;
    const int x = operation.inputs[0];
    double total = sum ? 0 : -INFINITY;
    for (int64_t j = 0; j < tensor(x).sizes[3]; ++j) {
      const double value = element(x, {at[0], at[1], at[2], j});
      total = sum ? total + value : std::max(total, value);
    }
    return total;
  }
  double product(const GraphOperation& operation, const Index& at) {
    const int a = operation.inputs[0], b = operation.inputs[1];
    EXPECT_EQ(tensor(a).sizes[3], tensor(b).sizes[2]);
    double total = 0;
    for (int64_t j = 0; j < tensor(a).sizes[3]; ++j) {
      total += element(a, {at[0], at[1], at[2], j}) * element(b, {at[0], at[1], j, at[3]});
    }
    return total;
  }
  double value(const GraphOperation& operation, const Index& at) {
    const auto x = [&](size_t i) { return input(operation, i, at); };
    switch (operation.kind) {
      case GraphKind::product:
        return product(operation, at);
      case GraphKind::transposed:
        return element(operation.inputs[0], {at[0], at[1], at[3], at[2]});
      case GraphKind::row_sum:
      case GraphKind::row_maximum:
        return row(operation, at);
      case GraphKind::add:
        return x(0) + x(1);
      case GraphKind::subtract:
        return x(0) - x(1);
      case GraphKind::multiply:
        return x(0) * x(1);
      case GraphKind::divide:
        return x(0) / x(1);
      case GraphKind::exponential:
        return std::exp(x(0));
      case GraphKind::logarithm:
        return std::log(x(0));
      case GraphKind::identity:
        return x(0);
      case GraphKind::row_index:
        return static_cast<double>(at[2]);
      case GraphKind::column_index:
        return static_cast<double>(at[3]);
      case GraphKind::at_least:
        return x(0) >= x(1) ? 1 : 0;
      case GraphKind::select:
        return x(2) != 0 ? x(0) : x(1);
    }
    return NAN;
  }
  void compute(const GraphOperation& operation) {
    for_each_index(tensor(operation.output).sizes,
                   [&](const Index& at) { element(operation.output, at) = value(operation, at); });
  }

  const OperationGraph& graph_;
  std::vector<std::vector<double>> memory_;
};

void expect_attention(const SoftmaxSizes& s) {
  const Shape shape{s.B, s.T, s.H, s.K}, rows{s.B, s.H, s.T};
  std::vector<Variable> leaves;
  for (const char* name : {"q", "k", "v"}) {
    leaves.emplace_back(test::random_tensor(shape, name), true);
  }
  const Tensor dy = test::random_tensor(shape, "dy");
  BlockAttentionContext context;
  context.options.causal = s.causal;
  context.options.scale = 1 / std::sqrt(static_cast<double>(s.K));
  const Variable y = block_attention({leaves[0], leaves[1], leaves[2], {}, {}, {}}, context);
  backward({y}, {dy});
  const auto input = [&](size_t i) { return leaves[i].value(); };
  // The scale is a float.
  constexpr double kTolerance = 1e-6;
  const SoftmaxForwardGraph forward = softmax_forward_graph(s);
  const Computed once(forward.graph,
                      {{forward.q, input(0)}, {forward.k, input(1)}, {forward.v, input(2)}});
  EXPECT_CLOSE(once.result(forward.y, shape), y.value(), kTolerance);
  const SoftmaxBackwardGraph back = softmax_backward_graph(s);
  const Computed again(back.graph, {{back.q, input(0)},
                                    {back.k, input(1)},
                                    {back.v, input(2)},
                                    {back.y, once.result(forward.y, shape)},
                                    {back.log_sum_exp, once.result(forward.log_sum_exp, rows)},
                                    {back.dy, dy}});
  EXPECT_CLOSE(again.result(back.dq, shape), leaves[0].grad(), kTolerance);
  EXPECT_CLOSE(again.result(back.dk, shape), leaves[1].grad(), kTolerance);
  EXPECT_CLOSE(again.result(back.dv, shape), leaves[2].grad(), kTolerance);
}

TEST(CudaSoftmaxGraph, ComputesAttentionAndItsGradients) {
  for (const bool causal : {false, true}) {
    expect_attention({2, 9, 3, 4, causal});
    expect_attention({1, 2, 1, 8, causal});
  }
}

// Where cuDNN takes attention for what it is: nothing of T x T is in memory.
TEST(CudaSoftmaxGraph, KeepsLogitsOutOfMemory) {
  const SoftmaxSizes sizes{1, 64, 2, 16, true};
  for (const OperationGraph& graph :
       {softmax_forward_graph(sizes).graph, softmax_backward_graph(sizes).graph}) {
    for (const GraphTensor& tensor : graph.tensors) {
      EXPECT_TRUE(!tensor.in_memory || tensor.sizes[2] != tensor.sizes[3]);
    }
  }
}

}  // namespace
}  // namespace linnet::cuda
