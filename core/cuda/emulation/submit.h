// The stream of the emulated device.
#pragma once

#include <functional>

namespace linnet::emulation {

// Runs `work` at once, or records it where this thread captures a graph: then it runs, again and
// again, when the graph is launched, so that it must own its arguments.
void submit(std::function<void()> work);

}  // namespace linnet::emulation
