// cuDNN's graph interface (its C functions, cudnnBackend*), for softmax attention by its kernels
// (`train.backend: cudnn`, and benchmarks). The library is loaded at its first use: builds need its
// headers alone, and programs start without it. Free of cuDNN's headers. cudnn_plan.cpp calls
// cuDNN; cudnn_absent.cpp is for builds that did not find it; an emulated device computes graphs
// one operation at a time (cudnn_emulated.cpp).
//
// Tests show without a GPU that cuDNN finds a kernel for each of linnet's graphs on an H100 and an
// A100 that are only described to it (CudnnPlans), and that the graphs compute softmax attention
// (CudaSoftmaxGraph); on an H200 its kernels agree with linnet's own (CudnnSoftmax).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/operation_graph.h"
#include "core/tensor.h"

namespace linnet::cuda {

// Why cuDNN cannot be used, and the remedy; empty: it can.
std::string cudnn_problem();
// "9.19.0"; empty where it cannot be used.
std::string cudnn_version();

// A kernel of cuDNN for a graph.
class GraphPlan {
 public:
  // `device` describes a GPU in cuDNN's JSON: the plan is for such a one, which need not be there,
  // and cannot run. Empty: this thread's device. Throws UsageError with cudnn_problem(), and Error
  // with cuDNN's reason where it has no kernel.
  explicit GraphPlan(const OperationGraph& graph, const std::string& device = "");
  ~GraphPlan();
  GraphPlan(const GraphPlan&) = delete;
  GraphPlan& operator=(const GraphPlan&) = delete;
  // Submits the kernel to this thread's stream. `tensors`: every tensor of the graph that is in
  // memory, by its index, at a multiple of 16 bytes.
  void run(const std::vector<std::pair<int, Tensor>>& tensors) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace linnet::cuda
