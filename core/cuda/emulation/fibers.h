// Fibers of the block emulator: one stack per CUDA thread, made once and reused by every block.
// Inside core/cuda/emulation only.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/cuda/emulation/emulation.h"
#include "core/cuda/emulation/sanitizers.h"

namespace linnet::emulation {

// A lane's part in its warp's collective.
struct Request {
  const void* in = nullptr;
  void* out = nullptr;
  size_t bytes = 0;
  int source = 0;
  void (*fold)(void* values) = nullptr;
  size_t out_bytes = 0;
  void (*exchange)(const void* in, void* out) = nullptr;
};

enum class Wait : uint8_t { no, warp, block };

struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;
  char* map = nullptr;
  const void* stack = nullptr;
  size_t stack_size = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* tsan = nullptr;        // ThreadSanitizer's
  uint3 thread{};
  int index = 0;
  Wait waits = Wait::no;
  Site site;
  Request request;
};

// The fiber that runs, and the one that stands for the host.
extern Fiber host_fiber;
extern Fiber* current;

// Makes `entry` run on as many fibers as a block has threads; entry never returns.
void grow_fibers(size_t count, void (*entry)());
Fiber* fiber(size_t index);
// After an error: stacks that were abandoned half-way are not reused.
void drop_fibers();
// Updates `current` and the sanitizers when a fiber goes on; `transfer` is boost's record of the
// fiber that ran before.
inline void landed(boost::context::detail::transfer_t transfer) {
  auto* from = static_cast<Fiber*>(transfer.data);
  from->context = transfer.fctx;
  __sanitizer_finish_switch_fiber(current->fake_stack, &from->stack, &from->stack_size);
  threadIdx = current->thread;
}
// Runs `to` until it switches back. Inline, as all between a kernel and its switch: processors
// mispredict every return on another stack than that of the call.
inline void switch_to(Fiber* to) {
  Fiber* from = std::exchange(current, to);
  __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_size);
  __tsan_switch_to_fiber(to->tsan, kNoOrder);
  landed(boost::context::detail::jump_fcontext(to->context, from));
}

// Order for ThreadSanitizer, announced by the block scheduler: switching orders nothing, only these
// do.
void order_release(void* token);
void order_acquire(void* token);
extern char start_token[8], end_token[8];

}  // namespace linnet::emulation
