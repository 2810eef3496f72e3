// CUDA graphs: work on the device that is captured once and replayed at the price of one launch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/cuda/graph_memory.h"
#include "core/cuda/runtime.h"

namespace linnet::cuda {

// A capture fixes the kernels of its replays, their arguments and addresses. Values that change
// from replay to replay (a batch, the step, the learning rate) must lie in device memory that the
// work only reads, and that outlives the graph: the caller writes them before a replay, or a
// function that the work named with before_each_replay does. Tensors that the work makes live in
// the graph's memory; those that outlive the work hold the values that the last replay of any graph
// with that memory left there.
class Graph {
 public:
  Graph() = default;
  // Calls `work` and records its work on the device, which does not run. Its work on the host is
  // done once, now. Rethrows exceptions of `work`, among them NotCapturable, and throws Error
  // naming the remedy where CUDA refuses the capture; nothing was run then.
  Graph(std::shared_ptr<GraphMemory> memory, const std::function<void()>& work);

  bool defined() const { return executable_ != nullptr; }
  // Kernels, copies and fills of a replay.
  size_t operations() const;
  // Calls the functions named with before_each_replay, then submits the graph to the current
  // stream.
  void replay(uint64_t step = 0) const;

 private:
  std::shared_ptr<GraphMemory> memory_;
  std::vector<std::function<void(uint64_t step)>> preparations_;
  std::shared_ptr<void> executable_;
};

// In a capture: `prepare` is called on the host before each replay, with the step of the replay,
// and updates the device memory that the captured work reads. Throws Error outside of captures.
void before_each_replay(std::function<void(uint64_t step)> prepare);

}  // namespace linnet::cuda
