// CUDA graphs: work on the device that is captured once and replayed at the price of one launch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/cuda/graph_memory.h"
#include "core/cuda/runtime.h"

namespace linnet::cuda {

// What replays do is fixed by the capture: kernels, their arguments, addresses. What changes from
// replay to replay (a batch, the step, the learning rate) must lie in device memory that the work
// only reads, and that outlives the graph: written before replays by their caller, or by what the
// work named with before_each_replay. Tensors that the work makes live in the graph's memory;
// those that outlive the work hold what the last replay of any graph with that memory left there.
class Graph {
 public:
  Graph() = default;
  // Calls `work`, which nothing runs. Everything that it does on the host is done now and never
  // again. Throws what `work` throws, among it NotCapturable, and Error naming the fix where CUDA
  // refuses the capture; nothing was run then.
  Graph(std::shared_ptr<GraphMemory> memory, const std::function<void()>& work);

  bool defined() const { return executable_ != nullptr; }
  // Kernels, copies and fills of a replay.
  size_t operations() const;
  // Does what was named with before_each_replay, then submits the graph to the current stream.
  void replay(uint64_t step = 0) const;

 private:
  std::shared_ptr<GraphMemory> memory_;
  std::vector<std::function<void(uint64_t step)>> preparations_;
  std::shared_ptr<void> executable_;
};

// In a capture: has `prepare` called on the host before each replay, with the step of the replay,
// so that it brings what the captured work reads up to date. Throws Error outside of captures.
void before_each_replay(std::function<void(uint64_t step)> prepare);

}  // namespace linnet::cuda
