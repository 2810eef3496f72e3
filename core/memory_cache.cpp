#include "core/memory_cache.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "core/free_memory.h"
#include "core/sanitizers.h"
#include "core/step_memory.h"

namespace linnet {
namespace {

constexpr size_t kAlignment = 64;
// Smaller blocks are left to malloc, which is fast for them.
constexpr size_t kMinKept = size_t{64} << 10;

// Blocks of at least this size are offered to the system for huge pages: kernels read sequences in
// strides that touch a page every few tokens, more pages than the processor's TLB holds.
constexpr size_t kHugePage = size_t{2} << 20;

// A step whose sizes are not all in use at once needs more blocks than bytes: with 6 MiB freed as
// three blocks of 2 MiB, one of 4 MiB would have to be a new one in every step. So a quarter more
// than the peak of requests may be held, but no more than this.
constexpr size_t kMaxSpare = size_t{256} << 20;

constexpr bool kKeep = !kAddressSanitizer && !kThreadSanitizer;

// The size class: eight steps per doubling for large blocks, whole alignments for small ones. 0
// when it would overflow.
size_t rounded(size_t bytes) {
  const size_t step =
      std::max(kAlignment, bytes < kMinKept ? kAlignment : std::bit_floor(bytes) / 8);
  return bytes > SIZE_MAX - step ? 0 : (bytes + step - 1) / step * step;
}

// Aligned memory for a block, or nullptr.
void* from_system(size_t size) {
  // The system promises more than it has, and ends a process that takes it at its word.
  if (!has_memory({}, static_cast<double>(size))) return nullptr;
  // Sanitizers guard the end of a block of exactly its size.
  if (!kKeep || size < kHugePage || size > SIZE_MAX - kHugePage) {
    return std::aligned_alloc(kAlignment, size);
  }
  void* memory = std::aligned_alloc(kHugePage, (size + kHugePage - 1) / kHugePage * kHugePage);
#if defined(__linux__)
  // Only whole pages of the block, so that none is larger in memory than its contents; where the
  // system refuses, only speed is lost.
  if (memory != nullptr) madvise(memory, size / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace

MemoryCache::~MemoryCache() {
  for (const Block& block : waiting_) std::free(block.memory);
}

void MemoryCache::drop_oldest() {
  std::free(waiting_.front().memory);
  waiting_bytes_ -= waiting_.front().bytes;
  waiting_.erase(waiting_.begin());
}

void MemoryCache::drop_beyond(size_t more) {
  const size_t limit = max_requested_bytes_ + std::min(max_requested_bytes_ / 4, kMaxSpare);
  while (!waiting_.empty() && used_bytes_ + more + waiting_bytes_ > limit) drop_oldest();
}

std::vector<MemoryCache::Block>::iterator MemoryCache::best_waiting(size_t size) {
  // Large blocks: fresh pages from the system cost more than the room that is left unused.
  const size_t largest = size < kHugePage || size > SIZE_MAX / 2 ? size : 2 * size;
  auto best = waiting_.end();
  for (auto block = waiting_.begin(); block != waiting_.end(); ++block) {
    if (block->bytes < size || block->bytes > largest) continue;
    // Of equal ones the newest: it is the likeliest to be in the processor's caches.
    if (best == waiting_.end() || block->bytes <= best->bytes) best = block;
  }
  return best;
}

bool MemoryCache::note_larger(const Block& block) noexcept {
  try {
    larger_[block.memory] = block.bytes;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void* MemoryCache::allocate(size_t bytes) {
  const size_t requested = rounded(bytes);
  if (requested == 0) return nullptr;
  if (requested < kMinKept) {
    void* block = take_step_block(requested, true);
    return block != nullptr ? block : std::aligned_alloc(kAlignment, requested);
  }
  if (!kKeep) return from_system(requested);
  const std::lock_guard lock(mutex_);
  const auto found = best_waiting(requested);
  void* memory = nullptr;
  size_t size = requested;
  if (found != waiting_.end()) {
    memory = found->memory;
    size = found->bytes;
    // Before anything else changes; no memory for the note is no memory.
    if (size > requested && !note_larger(*found)) return nullptr;
    waiting_.erase(found);
    waiting_bytes_ -= size;
  } else {
    // Make room for the block within the limit; drop more only when the system refuses.
    drop_beyond(requested);
    memory = from_system(requested);
    while (memory == nullptr && !waiting_.empty()) {
      drop_oldest();
      memory = from_system(requested);
    }
    if (memory == nullptr) return nullptr;
  }
  used_bytes_ += size;
  requested_bytes_ += requested;
  max_requested_bytes_ = std::max(max_requested_bytes_, requested_bytes_);
  return memory;
}

void MemoryCache::release(void* memory, size_t bytes) noexcept {
  const size_t requested = rounded(bytes);
  if (!kKeep || requested < kMinKept) {
    if (!keep_step_block(memory, true)) std::free(memory);
    return;
  }
  const std::lock_guard lock(mutex_);
  size_t size = requested;
  if (const auto larger = larger_.find(memory); larger != larger_.end()) {
    size = larger->second;
    larger_.erase(larger);
  }
  used_bytes_ -= size;
  requested_bytes_ -= requested;
  try {
    waiting_.push_back({memory, size});
    waiting_bytes_ += size;
  } catch (...) {  // no memory for the list itself
    std::free(memory);
  }
  drop_beyond(0);
}

size_t MemoryCache::waiting_bytes() const {
  const std::lock_guard lock(mutex_);
  return waiting_bytes_;
}

}  // namespace linnet
