#include "core/cuda/emulation/shared_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "core/cuda/emulation/fibers.h"
#include "core/cuda/emulation/sanitizers.h"
#include "core/error.h"

namespace linnet::emulation {
namespace {

// [tokens][red zone][array][red zone]...
constexpr size_t kTokenBytes = 16;
constexpr size_t kTokens = kOrderTokens * kTokenBytes;
constexpr size_t kRedZone = 64;
constexpr size_t kMaxArrays = 64;

char* map;
size_t map_bytes, requested;

}  // namespace

void renew_shared(size_t bytes) {
  requested = bytes;
  if (map != nullptr && bytes == 0 && !kTsan) return;
  const size_t all = kTokens + bytes + kMaxArrays * 2 * kRedZone;
  // Fresh pages make TSan forget the accesses and barriers of the block before.
  if (map != nullptr && (kTsan || map_bytes < all)) {
    // munmap does not do so, and a fiber's stack may lie there next.
    __asan_unpoison_memory_region(map, map_bytes);
    munmap(map, map_bytes);
    map = nullptr;
  }
  if (map == nullptr) {
    void* fresh = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(fresh != MAP_FAILED, "emulation: no memory for a block's shared memory");
    map = static_cast<char*>(fresh);
    map_bytes = all;
  }
  __asan_unpoison_memory_region(map, map_bytes);
  std::memset(map + kTokens, 0xFF, all - kTokens);
  __asan_poison_memory_region(map + kTokens, map_bytes - kTokens);
}

void* order_token(size_t index) {
  return map + index * kTokenBytes;
}

void* take_shared(size_t& used, int& arrays, size_t bytes, size_t alignment) {
  used = (used + alignment - 1) / alignment * alignment + bytes;
  if (current == &host_fiber) return nullptr;
  if (used > requested) {
    fail("the kernel takes %zu bytes of shared memory but was launched with %zu", used, requested);
  }
  if (++arrays > static_cast<int>(kMaxArrays) || alignment > kRedZone) {
    fail("more than %zu shared arrays, or alignment above %zu", kMaxArrays, kRedZone);
  }
  const size_t offset = used - bytes + kRedZone * (2 * static_cast<size_t>(arrays) - 1);
  char* array = map + kTokens + offset / alignment * alignment;
  __asan_unpoison_memory_region(array, bytes);
  return array;
}

}  // namespace linnet::emulation
