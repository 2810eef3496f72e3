// Devices: where tensors live. The CPU is implemented here, CUDA in core/cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"

namespace linnet {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

// "cpu" or "cuda:0".
std::string name_of(Device device);

// The functions that a device offers for tensors to live on it. One object per device, never
// destroyed. All functions throw Error naming the requested size when they fail.
class DeviceInterface {
 public:
  virtual ~DeviceInterface() = default;
  // 64-byte aligned memory, contents undefined. The caller owns it until release().
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) noexcept = 0;
  // Copies within the device, ordered after earlier work on it.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void copy_from_host(void* to, const void* from, size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, size_t bytes) = 0;
  virtual void set_zero(void* memory, size_t bytes) = 0;
  // Returns when all work submitted so far is done.
  virtual void synchronize() = 0;
  virtual std::string description() const = 0;
};

// A device has no memory left. The message names the requested size, the free memory and the
// largest users.
class OutOfMemory : public Error {
 public:
  OutOfMemory(const std::string& message, size_t requested, size_t free, size_t held)
      : Error(message), requested(requested), free(free), held(held) {}
  // Bytes: of the allocation, left on the device (0 where that is not known), held by tensors.
  size_t requested, free, held;
};

// While alive, names the user of this thread's allocations ("weights", "layer 3"), so that a device
// that runs out of memory can say who holds it. `user` must outlive the scope.
class MemoryUser {
 public:
  explicit MemoryUser(const char* user);
  ~MemoryUser();
  MemoryUser(const MemoryUser&) = delete;
  MemoryUser& operator=(const MemoryUser&) = delete;

 private:
  const char* before_;
};
// The innermost MemoryUser's, else "activations".
const char* memory_user();

// The interface of a device; throws UsageError when this build or machine does not have it.
DeviceInterface& device_interface(Device device);

// "auto" (the first GPU of a build with CUDA, else the CPU), "cpu", "cuda" or "cuda:N"; throws
// UsageError for anything else or a device that is absent.
Device device_from_name(std::string_view name);

// Bytes now held by tensors on the device, and their peak since the last reset_peak_memory.
size_t allocated_bytes(Device device);
size_t peak_allocated_bytes(Device device);
void reset_peak_memory(Device device);

}  // namespace linnet
