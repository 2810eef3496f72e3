// CUDA devices as tensors see them.
#pragma once

#include <memory>
#include <string>

#include "core/cuda/graph_memory.h"
#include "core/device.h"

namespace linnet::cuda {

// The interface of device `index`. Throws UsageError that names the fix where it cannot be used:
// no driver, an old one, no such device, or one without bf16 (compute capability below 8.0).
DeviceInterface& device(int index);
size_t allocated_bytes(int index);
size_t peak_allocated_bytes(int index);
void reset_peak_memory(int index);

// Memory for graphs of the device, counted as held by its tensors. Lives on while a tensor is in
// it.
std::shared_ptr<GraphMemory> make_graph_memory(int index);
// While alive, tensors that this thread makes on a device are in `memory`, and memory of others
// that is released is kept until `memory` is gone: a graph that is being captured may use it.
class AllocateFrom {
 public:
  explicit AllocateFrom(std::shared_ptr<GraphMemory> memory);
  ~AllocateFrom();
  AllocateFrom(const AllocateFrom&) = delete;
  AllocateFrom& operator=(const AllocateFrom&) = delete;

 private:
  std::shared_ptr<GraphMemory> before_;
};

}  // namespace linnet::cuda
