// Which kernels compute a call of a primitive on a device.
#pragma once

#include <cstdint>

namespace linnet {

// Chosen once, in forward (path.h of each primitive), and part of the call: backward follows it,
// whatever the thread would choose by then. On the CPU it says nothing. Block attention alone has
// cudnn.
enum class CallPath : uint8_t { plain, tensor_cores, cudnn };

constexpr CallPath call_path(bool on_tensor_cores) {
  return on_tensor_cores ? CallPath::tensor_cores : CallPath::plain;
}

}  // namespace linnet
