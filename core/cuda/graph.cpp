#include "core/cuda/graph.h"

#include "core/cuda/cuda_device.h"

namespace linnet::cuda {

Graph::Graph(std::shared_ptr<GraphMemory> memory, const std::function<void()>& work)
    : memory_(std::move(memory)) {
  begin_capture();
  try {
    const AllocateFrom here(memory_);
    work();
  } catch (const NotCapturable&) {
    abandon_capture();
    throw;
  } catch (const OutOfMemory&) {
    abandon_capture();
    throw;
  } catch (const Error& error) {
    abandon_capture();
    throw Error(concat(error.what(),
                       " (while a CUDA graph was captured; train.cuda_graph=false runs without)"));
  } catch (...) {
    abandon_capture();
    throw;
  }
  executable_ = {end_capture(), destroy_graph};
}

size_t Graph::operations() const {
  return recorded(executable_.get());
}

void Graph::replay() const {
  launch_graph(executable_.get());
}

}  // namespace linnet::cuda
