// CUDA devices as tensors see them.
#pragma once

#include <string>

#include "core/device.h"

namespace linnet::cuda {

// The interface of device `index`. Throws UsageError that names the fix where it cannot be used:
// no driver, an old one, no such device, or one without bf16 (compute capability below 8.0).
DeviceInterface& device(int index);
size_t allocated_bytes(int index);
size_t peak_allocated_bytes(int index);
void reset_peak_memory(int index);

}  // namespace linnet::cuda
