// The stream of the emulated device.
#pragma once

#include <functional>

namespace linnet::emulation {

// Runs `work` at once; with LINNET_EMULATION_LATE=1 when the host waits for the device, or when
// 1,024 further pieces were submitted. Records it where this thread captures a graph: then it runs,
// again and again, when the graph is launched. So it must own its arguments.
void submit(std::function<void()> work);

}  // namespace linnet::emulation
