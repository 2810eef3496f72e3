#include "core/step_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "core/sanitizers.h"
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace linnet {
namespace {

#if defined(__GLIBC__)
constexpr bool kUsed = !kAddressSanitizer && !kThreadSanitizer;
size_t usable_bytes(void* block) {
  return malloc_usable_size(block);
}
#else
constexpr bool kUsed = false;
size_t usable_bytes(void*) {
  return 0;
}
#endif

constexpr size_t kSmallest = 16, kLargest = size_t{1} << 20;
constexpr size_t kMaxWaiting = size_t{16} << 20;
constexpr size_t kAlignment = 64;
// Blocks that a class has at first: so many bytes of them, so many blocks at least and at most;
// larger classes none.
constexpr size_t kStockBytes = size_t{128} << 10, kLargestStocked = size_t{32} << 10;
constexpr size_t kMinStock = 8, kMaxStock = 32;
// How many classes up a block may be where none of its own waits.
constexpr size_t kReach = 4;
constexpr size_t kClasses = std::bit_width(kLargest / kSmallest);

size_t bytes_of(size_t size_class) {
  return kSmallest << size_class;
}

// The largest class whose blocks have at most `bytes`, at least kSmallest.
size_t class_within(size_t bytes) {
  return std::bit_width(std::min(bytes, kLargest) / kSmallest) - 1;
}

// The smallest class whose blocks have at least `bytes`, at most kLargest.
size_t class_for(size_t bytes) {
  return bytes <= kSmallest ? 0 : std::bit_width((bytes - 1) / kSmallest);
}

// A waiting block holds the next one of its class.
struct Waiting {
  Waiting* next;
};

struct Blocks {
  std::array<Waiting*, kClasses> first{};

  void* take(size_t size_class) {
    Waiting* block = first[size_class];
    if (block != nullptr) first[size_class] = block->next;
    return block;
  }
  void keep(void* block, size_t size_class) {
    first[size_class] = new (block) Waiting{first[size_class]};
  }
  void free_all() {
    for (size_t size_class = 0; size_class < kClasses; ++size_class) {
      while (void* block = take(size_class)) std::free(block);
    }
  }
};

// Of the thread, for as long as its StepMemory lives. Plain data: also read while a thread ends.
// Some hundred bytes, at a place that is known when the library is loaded: every allocation looks.
struct Thread {
  bool in_use = false;
  size_t waiting_bytes = 0;
  Blocks plain, aligned;
};
[[gnu::tls_model("initial-exec")]] thread_local constinit Thread thread;

void* heap_block(size_t size_class, bool aligned) {
  const size_t size = bytes_of(size_class);
  return aligned ? std::aligned_alloc(kAlignment, size) : std::malloc(size);
}

// Blocks that steps may want and none before them did, as where a chunk of the text ends.
void stock(Blocks& blocks, bool aligned) {
  for (size_t size_class = class_for(aligned ? kAlignment : kSmallest);
       bytes_of(size_class) <= kLargestStocked; ++size_class) {
    const size_t size = bytes_of(size_class);
    for (size_t i = 0; i < std::clamp(kStockBytes / size, kMinStock, kMaxStock); ++i) {
      void* block = heap_block(size_class, aligned);
      if (block == nullptr) return;
      blocks.keep(block, size_class);
      thread.waiting_bytes += size;
    }
  }
}

}  // namespace

StepMemory::StepMemory() : outermost_(kUsed && !thread.in_use) {
  if (!outermost_) return;
  thread.in_use = true;
  stock(thread.plain, false);
  stock(thread.aligned, true);
}

StepMemory::~StepMemory() {
  if (!outermost_) return;
  thread.in_use = false;
  thread.waiting_bytes = 0;
  thread.plain.free_all();
  thread.aligned.free_all();
}

void* take_step_block(size_t bytes, bool aligned) noexcept {
  if (!thread.in_use || bytes > kLargest) return nullptr;
  // Whole alignments.
  const size_t size_class = class_for(aligned ? std::max(bytes, kAlignment) : bytes);
  Blocks& blocks = aligned ? thread.aligned : thread.plain;
  const size_t end = std::min(size_class + kReach + 1, kClasses);
  for (size_t waiting = size_class; waiting < end; ++waiting) {
    void* block = blocks.take(waiting);
    if (block == nullptr) continue;
    thread.waiting_bytes -= bytes_of(waiting);
    return block;
  }
  return heap_block(size_class, aligned);
}

bool keep_step_block(void* block, bool aligned) noexcept {
  if (!thread.in_use) return false;
  const size_t usable = usable_bytes(block);
  if (usable < kSmallest || usable >= 2 * kLargest) return false;
  const size_t size_class = class_within(usable), size = bytes_of(size_class);
  if (thread.waiting_bytes + size > kMaxWaiting) return false;
  thread.waiting_bytes += size;
  (aligned ? thread.aligned : thread.plain).keep(block, size_class);
  return true;
}

}  // namespace linnet

#if defined(__GLIBC__) && !LINNET_BUILD_ADDRESS_SANITIZER && !LINNET_BUILD_THREAD_SANITIZER

// In place of the C++ library's, which do the same where no StepMemory lives. The forms for arrays
// and for programs without exceptions call these.
void* operator new(std::size_t bytes) {
  if (void* block = linnet::take_step_block(bytes, false)) return block;
  for (;;) {
    if (void* block = std::malloc(bytes > 0 ? bytes : 1)) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void operator delete(void* block) noexcept {
  if (block != nullptr && !linnet::keep_step_block(block, false)) std::free(block);
}

void operator delete(void* block, std::size_t) noexcept {
  operator delete(block);
}

// Blocks that may be kept have the alignment of all that are.
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const std::size_t own = std::max(static_cast<std::size_t>(alignment), linnet::kAlignment);
  if (own == linnet::kAlignment) {
    if (void* block = linnet::take_step_block(bytes, true)) return block;
  }
  const std::size_t whole =
      bytes > SIZE_MAX - own ? SIZE_MAX / own * own : (bytes + own - 1) / own * own;
  for (;;) {
    if (void* block = std::aligned_alloc(own, whole)) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void operator delete(void* block, std::align_val_t) noexcept {
  if (block != nullptr && !linnet::keep_step_block(block, true)) std::free(block);
}

void operator delete(void* block, std::size_t, std::align_val_t alignment) noexcept {
  operator delete(block, alignment);
}

#endif
