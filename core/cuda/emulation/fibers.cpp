// Stacks and switches, announced to the sanitizers.
#include "core/cuda/emulation/fibers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "core/error.h"

namespace linnet::emulation {

Fiber host_fiber;
Fiber* current = &host_fiber;
char start_token[8], end_token[8];

namespace {

constexpr size_t kGuard = 4096;  // below every stack: an overflow stops the program
constexpr size_t kStack = size_t{128} * 1024;

std::vector<std::unique_ptr<Fiber>> fibers;
void (*fiber_entry)();

void enter(boost::context::detail::transfer_t transfer) {
  landed(transfer);
  fiber_entry();
  std::abort();
}

}  // namespace

void grow_fibers(size_t count, void (*entry)()) {
  fiber_entry = entry;
  host_fiber.tsan = __tsan_get_current_fiber();
  while (fibers.size() < count) {
    // With equal offsets all stack tops fall into the same cache sets: barriers take twice as long.
    const size_t shift = fibers.size() % 64 * 320 % 4096;
    auto made = std::make_unique<Fiber>();
    void* map = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(map != MAP_FAILED, "emulation: no memory for the stacks of a block");
    made->map = static_cast<char*>(map);
    mprotect(made->map, kGuard, PROT_NONE);
    made->stack = made->map + kGuard;
    made->stack_size = kStack - shift;
    made->context = boost::context::detail::make_fcontext(made->map + kGuard + kStack - shift,
                                                          kStack - shift, enter);
    made->tsan = __tsan_create_fiber(0);
    fibers.push_back(std::move(made));
  }
}

Fiber* fiber(size_t index) {
  return fibers[index].get();
}

void drop_fibers() {
  for (const auto& dropped : fibers) {
    // On its behalf: its work happens before the host's next work.
    __tsan_switch_to_fiber(dropped->tsan, kNoOrder);
    __tsan_release(end_token);
    __tsan_switch_to_fiber(host_fiber.tsan, kNoOrder);
    __tsan_destroy_fiber(dropped->tsan);
    __asan_unpoison_memory_region(dropped->stack, dropped->stack_size);
    munmap(dropped->map, kStack + kGuard);
  }
  fibers.clear();
}

void order_release(void* token) {
  __tsan_release(token);
}
void order_acquire(void* token) {
  __tsan_acquire(token);
}

}  // namespace linnet::emulation
