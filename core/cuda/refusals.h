// Why a CUDA device or a kernel cannot be used, each with its remedy. Both runtimes pass the facts
// and take the messages from here, so that tests on the emulated device see those of a GPU.
#pragma once

#include <cstddef>
#include <string>

#include "core/cuda/runtime.h"

namespace linnet::cuda {

// "13.1" for 13010, as CUDA counts versions.
std::string version_text(int version);

// The problem of a driver that supports CUDA up to `driver` (0: there is none) and lists `count`
// devices, for a build with CUDA `runtime`; "" where there is none.
std::string driver_problem(int driver, int runtime, size_t count);
// The problem of one device: without bf16 (compute capability below 8.0) it cannot be used.
std::string device_problem(const DeviceFacts& device);

// Throws Error when a block of the kernel takes more shared memory than the device has for one.
void require_shared_memory(const char* kernel, size_t requested, size_t available);

}  // namespace linnet::cuda
