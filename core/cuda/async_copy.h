// Asynchronous copies from device memory to shared memory (cp.async, sm_80 and later), to prefetch
// tiles: 16 bytes each, in groups, waited for in the order in which groups were committed.
#pragma once

#include "core/cuda/kernel.h"
#if !defined(__CUDACC__)
#include <cstring>
#endif

namespace linnet::cuda {

// A thread's own copies. After wait() the thread may read them, other threads after a barrier. The
// emulator copies in wait(): until then the target is NaN, so that a missing wait shows.
class AsyncCopies {
 public:
  // Copies 16 bytes, both ends on 16 bytes; zeros, without reading `from`, where not `read`.
  __device__ __forceinline__ void copy(void* to, const void* from, bool read) {
#if defined(__CUDA_ARCH__)
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(read ? 16 : 0)
                 : "memory");
#elif !defined(__CUDACC__)
    if ((reinterpret_cast<uintptr_t>(to) | (read ? reinterpret_cast<uintptr_t>(from) : 0)) % 16 !=
        0) {
      emulation::fail("an asynchronous copy that does not begin on 16 bytes");
    }
    if (count_ == kMax) emulation::fail("more than %d asynchronous copies under way", kMax);
    std::memset(to, 0xFF, 16);
    pending_[count_++] = {to, from, read, group_};
#endif
  }
  // Ends the group of the copies since the last commit; it may be empty.
  __device__ __forceinline__ void commit() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
    ++group_;
#endif
  }
  // Waits until at most `newest` groups, the last ones, are still under way.
  template <int newest>
  __device__ __forceinline__ void wait() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
#elif !defined(__CUDACC__)
    int kept = 0;
    for (int i = 0; i < count_; ++i) {
      const Pending& copy = pending_[i];
      if (copy.group >= group_ - newest) {
        pending_[kept++] = copy;
      } else if (copy.read) {
        std::memcpy(copy.to, copy.from, 16);
      } else {
        std::memset(copy.to, 0, 16);
      }
    }
    count_ = kept;
#endif
  }

 private:
#if !defined(__CUDACC__)
  static constexpr int kMax = 128;
  struct Pending {
    void* to;
    const void* from;
    bool read;
    int group;
  };
  Pending pending_[kMax];
  int count_ = 0, group_ = 0;
#endif
};

}  // namespace linnet::cuda
