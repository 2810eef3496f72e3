#include "core/device.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <limits>
#include <thread>

#include "core/cuda/backend.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/refusals.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/free_memory.h"
#include "core/log.h"
#include "core/memory_cache.h"
#include "core/memory_limit.h"
#include "core/threads.h"

namespace linnet {
namespace {

std::atomic<size_t> cpu_bytes{0};
std::atomic<size_t> cpu_peak{0};
std::atomic<size_t> cpu_limit{std::numeric_limits<size_t>::max()};

// Ambient because it only labels allocations for the message of OutOfMemory.
thread_local const char* current_user = "activations";

// Bytes below which a second thread does not pay for filling or copying.
constexpr int64_t kGrain = int64_t{1} << 18;

class CpuDevice final : public DeviceInterface {
 public:
  void* allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    const size_t allowed = cpu_limit - std::min(cpu_limit.load(), cpu_bytes.load());
    void* memory = bytes > allowed ? nullptr : cache_.allocate(bytes);
    if (memory == nullptr) {
      const size_t left = bytes > allowed ? allowed : free_memory({}), held = allocated_bytes({});
      const bool known = left != std::numeric_limits<size_t>::max();
      throw OutOfMemory(
          concat("out of memory on cpu: ", memory_text(static_cast<double>(bytes)), " requested, ",
                 known ? memory_text(static_cast<double>(left)) + " free, " : "",
                 memory_text(static_cast<double>(held)), " already held by tensors"),
          bytes, known ? left : 0, held);
    }
    const size_t now = cpu_bytes += bytes;
    size_t peak = cpu_peak.load();
    while (now > peak && !cpu_peak.compare_exchange_weak(peak, now)) {
    }
    return memory;
  }
  void release(void* memory, size_t bytes) noexcept override {
    if (memory == nullptr) return;
    cache_.release(memory, bytes);
    cpu_bytes -= bytes;
  }
  void copy(void* to, const void* from, size_t bytes) override {
    auto* out = static_cast<char*>(to);
    const auto* in = static_cast<const char*>(from);
    if (out < in + bytes && in < out + bytes) {
      if (bytes > 0) std::memmove(to, from, bytes);  // they overlap
      return;
    }
    parallel_for(static_cast<int64_t>(bytes), kGrain, [=](int64_t begin, int64_t end) {
      std::memcpy(out + begin, in + begin, static_cast<size_t>(end - begin));
    });
  }
  void copy_from_host(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void copy_to_host(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void set_zero(void* memory, size_t bytes) override {
    auto* out = static_cast<char*>(memory);
    parallel_for(static_cast<int64_t>(bytes), kGrain, [=](int64_t begin, int64_t end) {
      std::memset(out + begin, 0, static_cast<size_t>(end - begin));
    });
  }
  void synchronize() override {}
  size_t kept() const { return cache_.waiting_bytes(); }
  std::string description() const override {
    return concat("cpu with ", std::thread::hardware_concurrency(), " hardware threads");
  }

 private:
  MemoryCache cache_;
};

CpuDevice& cpu_device() {
  // Never destroyed: tensors in static objects may outlive any order of destruction.
  static CpuDevice& cpu = *new CpuDevice;
  return cpu;
}

}  // namespace

size_t kept_memory(Device device) {
  return device.kind == DeviceKind::cpu ? cpu_device().kept() : 0;
}

std::string name_of(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : concat("cuda:", device.index);
}

CpuMemoryLimit::CpuMemoryLimit(size_t bytes) {
  cpu_limit = bytes;
}
CpuMemoryLimit::~CpuMemoryLimit() {
  cpu_limit = std::numeric_limits<size_t>::max();
}

MemoryUser::MemoryUser(const char* user) : before_(current_user) {
  current_user = user;
}
MemoryUser::~MemoryUser() {
  current_user = before_;
}
const char* memory_user() {
  return current_user;
}

DeviceInterface& device_interface(Device device) {
  if (device.kind == DeviceKind::cpu) return cpu_device();
  if constexpr (kCuda) {
    return cuda::device(device.index);
  } else {
    throw UsageError({ErrorCode::conflict, "device"},
                     concat("device ", name_of(device),
                            " was requested, but this build of linnet has no CUDA backend; use "
                            "--device cpu, or build the preset cuda"));
  }
}

Device device_from_name(std::string_view name) {
  if (name == "auto") {
    // The emulated device is for tests: slow, and chosen by name only.
    if constexpr (kCudaBackend == CudaBackend::on) {
      std::string why;
      int index = 0;
      for (const cuda::DeviceFacts& facts : cuda::devices(&why)) {
        const std::string problem = cuda::device_problem(facts);
        if (problem.empty()) return {DeviceKind::cuda, index};
        if (why.empty()) why = problem;
        ++index;
      }
      log_warning("no CUDA device can be used: ", why, "; going on with the CPU");
    }
    return {};
  }
  if (name == "cpu") return {};
  Device device{DeviceKind::cuda, 0};
  bool known = name == "cuda";
  if (name.substr(0, 5) == "cuda:") {
    const std::string_view number = name.substr(5);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), device.index);
    known = error == std::errc() && end == number.data() + number.size() && device.index >= 0;
  }
  if (known) {
    device_interface(device);
    return device;
  }
  throw UsageError({ErrorCode::unknown_name, "device"},
                   concat("unknown device '", name, "'; expected auto, cpu, cuda or cuda:N"));
}

size_t allocated_bytes(Device device) {
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) return cuda::allocated_bytes(device.index);
  }
  return device.kind == DeviceKind::cpu ? cpu_bytes.load() : 0;
}
size_t peak_allocated_bytes(Device device) {
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) return cuda::peak_allocated_bytes(device.index);
  }
  return device.kind == DeviceKind::cpu ? cpu_peak.load() : 0;
}
void reset_peak_memory(Device device) {
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) cuda::reset_peak_memory(device.index);
  }
  if (device.kind == DeviceKind::cpu) cpu_peak = cpu_bytes.load();
}

}  // namespace linnet
