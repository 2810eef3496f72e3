// The sanitizers' interfaces, or nothing. The emulator itself is compiled without instrumentation
// and announces its events by these calls; LINNET_EMULATION_ASAN or _TSAN is defined when the
// kernels are instrumented. Inside core/cuda/emulation only.
#pragma once

#include <cstddef>

#ifdef LINNET_EMULATION_ASAN
#include <sanitizer/asan_interface.h>  // its macros do nothing here: the functions are called
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef LINNET_EMULATION_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace linnet::emulation {

// NOLINTBEGIN(bugprone-reserved-identifier): the sanitizers' own names
#ifdef LINNET_EMULATION_TSAN
inline constexpr bool kTsan = true;
#else
inline constexpr bool kTsan = false;
inline void* __tsan_get_current_fiber() {
  return nullptr;
}
inline void* __tsan_create_fiber(unsigned) {
  return nullptr;
}
inline void __tsan_destroy_fiber(void*) {}
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
#endif

#ifndef LINNET_EMULATION_ASAN
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
inline void __asan_poison_memory_region(const volatile void*, size_t) {}
inline void __asan_unpoison_memory_region(const volatile void*, size_t) {}
#endif

// NOLINTEND(bugprone-reserved-identifier)

// __tsan_switch_to_fiber: the switch makes nothing happen before anything else.
inline constexpr unsigned kNoOrder = 1;

}  // namespace linnet::emulation
