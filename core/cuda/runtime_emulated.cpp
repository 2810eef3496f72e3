// Pretended devices: their memory is the host's. Work runs when it is submitted, or, with
// LINNET_EMULATION_LATE=1, as late as a GPU may run it.
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
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

// Late work of each device, oldest first. Touched by the stream's owner alone.
constexpr size_t kMaxLate = 1024;  // about as many launches as a GPU's driver queues
using Queue = std::deque<std::function<void()>>;

Queue& queue_here() {
  // Never destroyed: tensors in static objects may outlive any order of destruction.
  static auto& queues = *new std::array<Queue, kMaxDevices>;
  return queues.at(static_cast<size_t>(this_device));
}

bool late() {
  const char* text = std::getenv("LINNET_EMULATION_LATE");
  return text != nullptr && std::string_view(text) == "1";
}

// Runs the oldest late work until `left` are left. What throws is done with.
void run_late(size_t left) {
  Queue& queue = queue_here();
  while (queue.size() > left) {
    const std::function<void()> work = std::move(queue.front());
    queue.pop_front();
    work();
  }
}

// In the order of the stream: now, or late.
void run_in_order(const std::function<void()>& work) {
  if (!late()) {
    run_late(0);
    return work();
  }
  queue_here().push_back(work);
  run_late(kMaxLate);
}

// Memory that was allocated and not released, from begin to end. Never destroyed, as the queues.
struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, uintptr_t> ends;
};
Blocks& blocks() {
  static auto& all = *new Blocks;
  return all;
}

bool on_device(uintptr_t begin, size_t bytes) {
  const std::lock_guard lock(blocks().mutex);
  const std::map<uintptr_t, uintptr_t>& ends = blocks().ends;
  const auto after = ends.upper_bound(begin);
  return after != ends.begin() && begin + bytes <= std::prev(after)->second;
}

// Device memory of that many bytes, for `what`.
void require_on_device(const void* memory, size_t bytes, const char* what) {
  require(on_device(reinterpret_cast<uintptr_t>(memory), bytes), "CUDA: ", what, " of ", bytes,
          " bytes reaches beyond one allocation of device memory, or into host or released memory");
}

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
  if (allocated == nullptr) return nullptr;
  held_here() += malloc_usable_size(allocated);
  const auto begin = reinterpret_cast<uintptr_t>(allocated);
  const std::lock_guard lock(blocks().mutex);
  blocks().ends[begin] = begin + bytes;
  return allocated;
}

void release(void* released) noexcept {
  held_here() -= malloc_usable_size(released);
  {
    const std::lock_guard lock(blocks().mutex);
    blocks().ends.erase(reinterpret_cast<uintptr_t>(released));
  }
  // Work that was submitted before may use it still.
  if (queue_here().empty()) {
    std::free(released);
  } else {
    queue_here().emplace_back([released] { std::free(released); });
  }
}

size_t free_bytes() {
  return memory() - std::min(memory(), held_here().load());
}

void copy(void* to, const void* from, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(from), target = reinterpret_cast<uintptr_t>(to);
  require(target + bytes <= begin || begin + bytes <= target, "CUDA: a copy of ", bytes,
          " bytes on the device to memory that overlaps its source; copy through another tensor");
  if (bytes == 0) return;
  require_on_device(from, bytes, "a copy");
  require_on_device(to, bytes, "a copy");
  emulation::submit([=] { std::memcpy(to, from, bytes); });
}

void copy_from_host(void* to, const void* from, size_t bytes) {
  refuse_capture("a copy of host memory to the device");
  require_stream_owner(this_device);
  if (bytes == 0) return;
  require_on_device(to, bytes, "a copy");
  // `from` may be changed when this returns.
  const auto* first = static_cast<const char*>(from);
  run_in_order([to, staged = std::vector<char>(first, first + bytes)] {
    std::copy(staged.begin(), staged.end(), static_cast<char*>(to));
  });
}

void copy_to_host(void* to, const void* from, size_t bytes) {
  refuse_capture("a copy of device memory to the host");
  require_stream_owner(this_device);
  if (bytes == 0) return;
  require_on_device(from, bytes, "a copy");
  run_late(0);
  std::memcpy(to, from, bytes);
}

void fill_bytes(void* memory, int value, size_t bytes) {
  if (bytes == 0) return;
  require_on_device(memory, bytes, "a fill");
  emulation::submit([=] { std::memset(memory, value, bytes); });
}

void synchronize() {
  refuse_capture("waiting for the device");
  require_stream_owner(this_device);
  run_late(0);
}

void begin_capture() {
  require(!capturing(), "CUDA graphs: a capture began inside another");
  synchronize();
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
  require_stream_owner(this_device);
  for (const auto& work : *static_cast<Recording*>(graph)) run_in_order(work);
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
    cuda::run_in_order(work);
  }
}

void refuse_host_memory(const char* kernel, int argument, const void* value, size_t bytes,
                        bool is_pointer) {
  // Where addresses of programs lie; smaller words are numbers, or addresses without a page.
  constexpr uintptr_t kFirst = uintptr_t{0x5000} << 32, kEnd = uintptr_t{1} << 48;
  constexpr uintptr_t kPage = 4096;
  for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, static_cast<const char*>(value) + at, sizeof word);
    if (word == 0 || (!is_pointer && (word < kFirst || word >= kEnd))) continue;
    if (cuda::on_device(word, 0)) continue;
    const uintptr_t page = word / kPage * kPage;
    void* address = nullptr;
    std::memcpy(&address, &page, sizeof page);
    unsigned char resident = 0;
    // A number that no page has, such as a seed.
    if (!is_pointer && mincore(address, kPage, &resident) != 0) continue;
    throw Error(concat("kernel ", kernel, ": argument ", argument,
                       " holds an address that is not of device memory, or of memory that was "
                       "released; copy to the device what the kernel reads"));
  }
}

}  // namespace linnet::emulation
