// One pretended device: its memory is the host's, its stream is the calling thread.
#include <cstdlib>
#include <cstring>

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace linnet::cuda {
namespace {

// What the pretended device has: small enough that a test can exhaust it.
constexpr size_t kMemory = size_t{8} << 30;

}  // namespace

std::vector<DeviceFacts> devices(std::string* why) {
  if (why != nullptr) why->clear();
  return {{"emulated CUDA device on the CPU", 9, 0, kMemory, 1}};
}

Versions versions() {
  return {"none", "emulated"};
}

int current_device() {
  return 0;
}

void set_device(int index) {
  require(index == 0, "CUDA: there is one emulated device, cuda:0; cuda:", index, " was asked for");
}

void* stream() {
  return nullptr;
}

void* allocate(size_t bytes) {
  // Exactly the size asked for, so that AddressSanitizer guards both ends.
  return bytes > kMemory ? nullptr : std::malloc(bytes);
}

void release(void* memory) noexcept {
  std::free(memory);
}

size_t free_bytes() {
  return kMemory;
}

void* allocate_pinned(size_t bytes) {
  return std::malloc(bytes);
}

void release_pinned(void* memory) noexcept {
  std::free(memory);
}

void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

void copy_from_host(void* to, const void* from, size_t bytes) {
  copy(to, from, bytes);
}

void copy_to_host(void* to, const void* from, size_t bytes) {
  copy(to, from, bytes);
}

void fill_bytes(void* memory, int value, size_t bytes) {
  if (bytes > 0) std::memset(memory, value, bytes);
}

void synchronize() {}

}  // namespace linnet::cuda
