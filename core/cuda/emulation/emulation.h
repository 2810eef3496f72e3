// CUDA's vocabulary for host compilers: kernels run on the CPU, one thread block after another,
// every CUDA thread a fiber that runs to its next barrier or warp collective. Included by
// core/cuda/kernel.h where the compiler is not nvcc.
//
// Missing barriers, divergence and misuse are found: shared memory begins as NaN between red zones,
// a collective that some lanes miss throws Error with file and line, and under ThreadSanitizer only
// barriers order anything, so that every race is reported. Nothing is said about registers, bank
// conflicts or speed, and the last bits of exp or rsqrt differ from a GPU's.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "core/cuda/emulation/cuda_types.h"
#include "core/cuda/emulation/submit.h"

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's own names
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline
#define __constant__                                                   \
  static_assert(false, "__constant__ is not emulated: pass a struct"); \
  static
#define __shared__                                             \
  static_assert(false, "take shared memory from SharedArena"); \
  static

// Indices of the thread that runs now: rewritten at every fiber switch.
inline uint3 threadIdx{}, blockIdx{};
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace linnet::emulation {

// Where a thread waits, for messages and divergence checks.
struct Site {
  const char* what = "";
  const char* file = "";
  int line = 0;
};

// Throws Error, naming the kernel, for a launch that no GPU accepts.
void require_launchable(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes);
// Throws Error, naming the kernel, where an argument is an address outside device memory, or a
// struct that holds one. In a struct only a word that is an address of this program counts as one.
// `value` is without padding, whose bytes may be those of any address.
void refuse_host_memory(const char* kernel, int argument, const void* value, size_t bytes,
                        bool is_pointer);
template <typename T>
void refuse_host_memory(const char* kernel, int argument, T value) {
  static_assert(std::is_trivially_copyable_v<T>, "a GPU gets the bytes of a kernel's arguments");
  if constexpr (alignof(T) >= alignof(void*)) {
    __builtin_clear_padding(&value);
    refuse_host_memory(kernel, argument, &value, sizeof value, std::is_pointer_v<T>);
  }
}
// Calls body() once per thread of the grid. Throws Error on deadlock, divergence or misuse, naming
// the kernel. Launches of several threads of the program queue up.
void run(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes,
         const std::function<void()>& body);
// Ends the launch with an Error.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// All threads of the block; returns for how many the predicate was true.
int barrier(bool predicate, Site site);
// Orders memory among the lanes of the mask.
void sync_warp(unsigned mask, Site site);
unsigned ballot(unsigned mask, bool predicate, Site site);
// out = `in` of lane `source`; orders no memory, as on the GPU.
void gather(unsigned mask, Site site, const void* in, size_t bytes, void* out, int source);
// Gathers the values of the 32 lanes of a whole warp, calls combine(values) once, and gives every
// lane the first of them: five shuffles in one.
void combine_lanes(Site site, void* value, size_t bytes, void (*combine)(void* values));
int lane();
void fence();
// The next array of the block's shared memory; on the host only counts `used`.
void* take_shared(size_t& used, int& arrays, size_t bytes, size_t alignment);

template <typename T>
T shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  T out;
  gather(mask, site, &value, sizeof(T), &out, source);
  return out;
}

}  // namespace linnet::emulation

#define LINNET_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(LINNET_HERE) {
  linnet::emulation::barrier(false, {"__syncthreads", file, line});
}
inline int __syncthreads_count(int predicate, LINNET_HERE) {
  return linnet::emulation::barrier(predicate != 0, {"__syncthreads_count", file, line});
}
inline int __syncthreads_or(int predicate, LINNET_HERE) {
  return linnet::emulation::barrier(predicate != 0, {"__syncthreads_or", file, line}) != 0;
}
inline void __syncwarp(unsigned mask = ~0u, LINNET_HERE) {
  linnet::emulation::sync_warp(mask, {"__syncwarp", file, line});
}
inline void __threadfence() {
  linnet::emulation::fence();
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, LINNET_HERE) {
  const int lane = linnet::emulation::lane();
  return linnet::emulation::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)),
                                    {"__shfl_sync", file, line});
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, LINNET_HERE) {
  const int lane = linnet::emulation::lane();
  const int source = lane ^ bits;
  return linnet::emulation::shuffle(mask, value, source / width > lane / width ? lane : source,
                                    {"__shfl_xor_sync", file, line});
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, LINNET_HERE) {
  const int lane = linnet::emulation::lane();
  const int source = lane - static_cast<int>(delta);
  return linnet::emulation::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source,
                                    {"__shfl_up_sync", file, line});
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, LINNET_HERE) {
  const int lane = linnet::emulation::lane();
  const int source = lane + static_cast<int>(delta);
  return linnet::emulation::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source,
                                    {"__shfl_down_sync", file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, LINNET_HERE) {
  return linnet::emulation::ballot(mask, predicate != 0, {"__ballot_sync", file, line});
}
inline int __any_sync(unsigned mask, int predicate, LINNET_HERE) {
  return linnet::emulation::ballot(mask, predicate != 0, {"__any_sync", file, line}) != 0;
}

#undef LINNET_HERE

// Integer atomics only: linnet's kernels never add floats atomically. Relaxed, as CUDA's.
inline int atomicAdd(int* to, int value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

// Scalar functions: the same accuracy class as the GPU's, not the same bits.
using std::isfinite;
using std::isnan;
using std::max;
using std::min;
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
// NOLINTEND(bugprone-reserved-identifier)
