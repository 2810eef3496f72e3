// Pretended devices: their memory is the host's, their stream is the calling thread.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/cuda/emulation/submit.h"
#include "core/cuda/refusals.h"
#include "core/cuda/runtime.h"
#include "core/cuda/stream_owner.h"
#include "core/error.h"

namespace linnet::cuda {
namespace {

constexpr size_t kMaxDevices = 8;
std::array<std::atomic<size_t>, kMaxDevices> held{};  // bytes of each
thread_local int this_device = 0;                     // of the thread, as on CUDA

std::atomic<size_t>& held_here() {
  return held.at(static_cast<size_t>(this_device));
}

using Recording = std::vector<std::function<void()>>;
thread_local std::unique_ptr<Recording> recording;  // null: nothing is captured

// Memory of every pretended device: 8 GiB, or LINNET_EMULATED_MEMORY bytes, so that a test can
// exhaust it.
size_t memory() {
  const char* text = std::getenv("LINNET_EMULATED_MEMORY");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : size_t{8} << 30;
}

constexpr int kRuntime = 13000;  // the CUDA version that the emulated build pretends to have

// Versions and compute capability, as CUDA counts them, that a test sets in the environment.
int pretended(const char* variable, int usual) {
  const char* text = std::getenv(variable);
  return text != nullptr ? static_cast<int>(std::strtol(text, nullptr, 10)) : usual;
}

}  // namespace

std::vector<DeviceFacts> devices(std::string* why) {
  const int driver = pretended("LINNET_EMULATED_DRIVER", kRuntime);
  const int capability = pretended("LINNET_EMULATED_CAPABILITY", 90);
  const auto count = static_cast<size_t>(pretended("LINNET_EMULATED_DEVICES", 1));
  const std::string problem = driver_problem(driver, kRuntime, count);
  if (why != nullptr) *why = problem;
  if (!problem.empty()) return {};
  return std::vector<DeviceFacts>(
      std::min(count, kMaxDevices),
      {"emulated CUDA device on the CPU", capability / 10, capability % 10, memory(), 1});
}

Versions versions() {
  return {"none", "emulated"};
}

size_t shared_memory_limit() {
  const int capability = pretended("LINNET_EMULATED_CAPABILITY", 90);
  const size_t kilobytes = capability >= 90 && capability < 120   ? 227
                           : capability == 80 || capability == 87 ? 163
                                                                  : 99;
  return kilobytes * 1024;
}

int current_device() {
  return this_device;
}

void set_device(int index) {
  const size_t count = devices().size();
  require(index >= 0 && static_cast<size_t>(index) < count, "CUDA: selecting device cuda:", index,
          " failed: there are ", count, " emulated devices");
  this_device = index;
}

void* stream() {
  return nullptr;
}

void hand_over_stream() {
  synchronize();
  disown_stream(this_device);
}

void* allocate(size_t bytes) {
  require_stream_owner(this_device);
  // Exactly the requested size, so that AddressSanitizer guards both ends.
  if (bytes > free_bytes()) return nullptr;
  void* allocated = std::malloc(bytes);
  held_here() += malloc_usable_size(allocated);
  return allocated;
}

void release(void* released) noexcept {
  held_here() -= malloc_usable_size(released);
  std::free(released);
}

size_t free_bytes() {
  return memory() - std::min(memory(), held_here().load());
}

void copy(void* to, const void* from, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(from), target = reinterpret_cast<uintptr_t>(to);
  require(target + bytes <= begin || begin + bytes <= target, "CUDA: a copy of ", bytes,
          " bytes on the device to memory that overlaps its source; copy through another tensor");
  if (bytes > 0) emulation::submit([=] { std::memcpy(to, from, bytes); });
}

void copy_from_host(void* to, const void* from, size_t bytes) {
  refuse_capture("a copy of host memory to the device");
  require_stream_owner(this_device);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copy_to_host(void* to, const void* from, size_t bytes) {
  refuse_capture("a copy of device memory to the host");
  require_stream_owner(this_device);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void fill_bytes(void* memory, int value, size_t bytes) {
  if (bytes > 0) emulation::submit([=] { std::memset(memory, value, bytes); });
}

void synchronize() {
  refuse_capture("waiting for the device");
  require_stream_owner(this_device);
}

void begin_capture() {
  require(!capturing(), "CUDA graphs: a capture began inside another");
  recording = std::make_unique<Recording>();
}

void* end_capture() {
  return recording.release();
}

void abandon_capture() noexcept {
  recording.reset();
}

bool capturing() {
  return recording != nullptr;
}

size_t recorded(void* graph) {
  return static_cast<Recording*>(graph)->size();
}

void launch_graph(void* graph) {
  refuse_capture("the launch of another graph");
  for (const auto& work : *static_cast<Recording*>(graph)) work();
}

void destroy_graph(void* graph) noexcept {
  delete static_cast<Recording*>(graph);
}

void* allocate_lasting(size_t bytes) {
  return allocate(bytes);
}

void release_lasting(void* memory) noexcept {
  release(memory);
}

}  // namespace linnet::cuda

namespace linnet::emulation {

void submit(std::function<void()> work) {
  cuda::require_stream_owner(cuda::this_device);
  if (cuda::capturing()) {
    cuda::recording->push_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace linnet::emulation
