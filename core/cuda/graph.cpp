#include "core/cuda/graph.h"

#include "core/cuda/cuda_device.h"

namespace linnet::cuda {
namespace {

using Preparations = std::vector<std::function<void(uint64_t step)>>;
// Of the thread: a capture records what its own thread launches.
thread_local Preparations* preparations_of_capture = nullptr;

// While alive, before_each_replay adds to this list.
class Collecting {
 public:
  explicit Collecting(Preparations& list) { preparations_of_capture = &list; }
  ~Collecting() { preparations_of_capture = nullptr; }
  Collecting(const Collecting&) = delete;
  Collecting& operator=(const Collecting&) = delete;
};

}  // namespace

void before_each_replay(std::function<void(uint64_t step)> prepare) {
  require(preparations_of_capture != nullptr, "CUDA graphs: before_each_replay outside a capture");
  preparations_of_capture->push_back(std::move(prepare));
}

Graph::Graph(std::shared_ptr<GraphMemory> memory, const std::function<void()>& work)
    : memory_(std::move(memory)) {
  begin_capture();
  try {
    const AllocateFrom here(memory_);
    const Collecting preparations(preparations_);
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

void Graph::replay(uint64_t step) const {
  for (const auto& prepare : preparations_) prepare(step);
  launch_graph(executable_.get());
}

}  // namespace linnet::cuda
