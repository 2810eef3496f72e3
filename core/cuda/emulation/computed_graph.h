// A graph of operations that cuDNN would fuse, computed one operation after the other in double.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "core/cuda/operation_graph.h"
#include "core/error.h"

namespace linnet::emulation {

// Elements from a tensor's first to its last, as its strides place them.
inline int64_t extent(const cuda::GraphTensor& tensor) {
  int64_t last = 0;
  for (size_t d = 0; d < 4; ++d) last += (tensor.sizes[d] - 1) * tensor.strides[d];
  return last + 1;
}

class ComputedGraph {
 public:
  // `inputs`: what is in memory before, by index, each of extent() elements. The graph must outlive
  // this.
  ComputedGraph(const cuda::OperationGraph& graph, std::map<int, std::vector<double>> inputs)
      : graph_(graph) {
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      const cuda::GraphTensor& tensor = graph.tensors[i];
      const auto found = inputs.find(static_cast<int>(i));
      if (found != inputs.end()) {
        require(tensor.in_memory && std::ssize(found->second) == extent(tensor), "tensor ", i,
                " of the graph has other elements");
        memory_.push_back(std::move(found->second));
      } else {
        const double first = tensor.value ? *tensor.value : std::nan("");
        memory_.emplace_back(static_cast<size_t>(extent(tensor)), first);
      }
    }
    for (const cuda::GraphOperation& operation : graph.operations) compute(operation);
  }
  // The elements of tensor `number`, in the order of memory.
  const std::vector<double>& operator[](int number) const {
    return memory_[static_cast<size_t>(number)];
  }

 private:
  using Index = std::array<int64_t, 4>;

  const cuda::GraphTensor& tensor(int number) const {
    return graph_.tensors[static_cast<size_t>(number)];
  }
  double& element(int number, const Index& at) {
    const Index& strides = tensor(number).strides;
    int64_t offset = 0;
    for (size_t d = 0; d < 4; ++d) offset += at[d] * strides[d];
    return memory_[static_cast<size_t>(number)][static_cast<size_t>(offset)];
  }
  // The element of an input that belongs to one of the output: sizes of 1 are repeated.
  double input(const cuda::GraphOperation& operation, size_t i, const Index& at) {
    const int number = operation.inputs[i];
    Index from{};
    for (size_t d = 0; d < 4; ++d) {
      const int64_t size = tensor(number).sizes[d];
      require(size == 1 || size == tensor(operation.output).sizes[d],
              "inputs of an operation by elements have other sizes than its result");
      if (size != 1) from[d] = at[d];
    }
    return element(number, from);
  }
  double row(const cuda::GraphOperation& operation, const Index& at) {
    const bool sum = operation.kind == cuda::GraphKind::row_sum;
    const int x = operation.inputs[0];
    double total = sum ? 0 : -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < tensor(x).sizes[3]; ++j) {
      const double value = element(x, {at[0], at[1], at[2], j});
      total = sum ? total + value : std::max(total, value);
    }
    return total;
  }
  double product(const cuda::GraphOperation& operation, const Index& at) {
    const int a = operation.inputs[0], b = operation.inputs[1];
    require(tensor(a).sizes[3] == tensor(b).sizes[2], "matrices of a product do not fit");
    double total = 0;
    for (int64_t j = 0; j < tensor(a).sizes[3]; ++j) {
      total += element(a, {at[0], at[1], at[2], j}) * element(b, {at[0], at[1], j, at[3]});
    }
    return total;
  }
  double value(const cuda::GraphOperation& operation, const Index& at) {
    using cuda::GraphKind;
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
    return std::nan("");
  }
  void compute(const cuda::GraphOperation& operation) {
    const Index& sizes = tensor(operation.output).sizes;
    Index at{};
    for (at[0] = 0; at[0] < sizes[0]; ++at[0]) {
      for (at[1] = 0; at[1] < sizes[1]; ++at[1]) {
        for (at[2] = 0; at[2] < sizes[2]; ++at[2]) {
          for (at[3] = 0; at[3] < sizes[3]; ++at[3]) {
            element(operation.output, at) = value(operation, at);
          }
        }
      }
    }
  }

  const cuda::OperationGraph& graph_;
  std::vector<std::vector<double>> memory_;
};

}  // namespace linnet::emulation
