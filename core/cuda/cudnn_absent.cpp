// Builds without cuDNN.
#include "core/cuda/cudnn.h"

namespace linnet::cuda {

std::string cudnn_problem() {
  return "this build has no cuDNN; install it with its headers (NVIDIA's package "
         "cudnn9-cuda-13), then configure and build again";
}

std::string cudnn_version() {
  return "";
}

struct GraphPlan::State {};

GraphPlan::GraphPlan(const OperationGraph& /*graph*/, const std::string& /*device*/) {
  throw UsageError(cudnn_problem());
}

GraphPlan::~GraphPlan() = default;

void GraphPlan::run(const std::vector<std::pair<int, Tensor>>& /*tensors*/) const {}

}  // namespace linnet::cuda
