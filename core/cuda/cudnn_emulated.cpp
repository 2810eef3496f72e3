// What stands for cuDNN on an emulated device: a plan computes its graph one operation at a time.
// Whether cuDNN has a kernel for a graph is not known here, but for heads that none takes.
#include <map>
#include <utility>

#include "core/cuda/cudnn.h"
#include "core/cuda/emulation/computed_graph.h"
#include "core/cuda/emulation/submit.h"
#include "core/cuda/runtime.h"

namespace linnet::cuda {

std::string cudnn_problem() {
  return "";
}

std::string cudnn_version() {
  return "emulated";
}

struct GraphPlan::State {
  OperationGraph graph;
};

GraphPlan::GraphPlan(const OperationGraph& graph, const std::string& /*device*/)
    : state_(std::make_unique<State>(State{graph})) {
  for (const GraphTensor& tensor : graph.tensors) {
    if (!tensor.in_memory || tensor.type != GraphType::bf16) continue;
    const int64_t width = tensor.strides[3] == 1 ? tensor.sizes[3] : tensor.sizes[2];
    require(width % 8 == 0, "cuDNN has no kernel for this graph: heads of ", width, " elements");
  }
}

GraphPlan::~GraphPlan() = default;

void GraphPlan::run(const std::vector<std::pair<int, Tensor>>& tensors) const {
  std::map<int, Tensor> memory;
  for (const auto& [index, tensor] : tensors) {
    const GraphTensor& wanted = state_->graph.tensors.at(static_cast<size_t>(index));
    const DType dtype = wanted.type == GraphType::bf16 ? DType::bf16 : DType::f32;
    require(wanted.in_memory && tensor.dtype() == dtype &&
                tensor.elements() == emulation::extent(wanted) &&
                reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0,
            "cuDNN: tensor ", index, " of the graph cannot be ", tensor.shape(), " ",
            name_of(tensor.dtype()));
    require_current(tensor.device().index);
    memory.emplace(index, Tensor::borrowed(tensor.raw(), tensor.shape(), tensor.dtype()));
  }
  for (size_t i = 0; i < state_->graph.tensors.size(); ++i) {
    require(!state_->graph.tensors[i].in_memory || memory.contains(static_cast<int>(i)),
            "cuDNN: tensor ", i, " of the graph is missing");
  }
  emulation::submit([graph = state_->graph, memory] {
    std::map<int, std::vector<double>> inputs;
    for (const auto& [index, tensor] : memory) inputs[index] = tensor.to_vector<double>();
    const emulation::ComputedGraph computed(graph, std::move(inputs));
    for (const GraphOperation& operation : graph.operations) {
      const auto found = memory.find(operation.output);
      if (found == memory.end()) continue;
      const Tensor& to = found->second;
      to.copy_from(Tensor::from(computed[operation.output], to.shape()).to(to.dtype()));
    }
  });
}

}  // namespace linnet::cuda
