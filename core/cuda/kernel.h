// The one header that kernels include. Under nvcc it is CUDA; under any other compiler the same
// sources are ordinary C++ whose kernels run on the CPU (core/cuda/emulation).
//
// Rules for kernels: shared memory comes from SharedArena only; no __shared__, __constant__,
// cooperative groups or float atomics; collectives of full warps from one source line; vector
// accesses are aligned; no waiting for another block. Kernels compute in float (double for sums
// over a whole tensor) and store float or bf16. Declare a large struct that parts of a kernel take
// by reference as `const __grid_constant__`: nvcc then reads it in place instead of copying it,
// which costs registers and may spill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#else
#include "core/cuda/emulation/emulation.h"
#endif

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "core/tensor.h"

namespace linnet::cuda {

// The bf16 of kernels; linnet::bf16 is the host's, with the same bits.
using kernel_bf16 = __nv_bfloat16;

// The only way a kernel gets shared memory: take<float>(n) gives float*, take<float[17]>(16) gives
// float (*)[17]. On the host take() only counts, so that one layout struct serves the kernel and
// its launch (shared_bytes<Layout>(arguments...)).
class SharedArena {
 public:
  template <typename T>
  __host__ __device__ T* take(size_t count) {
    constexpr size_t kAlignment = alignof(T) < 16 ? 16 : alignof(T);
#if defined(__CUDA_ARCH__)
    extern __shared__ __align__(128) unsigned char linnet_shared_memory[];
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment + sizeof(T) * count;
    return reinterpret_cast<T*>(linnet_shared_memory + (used_ - sizeof(T) * count));
#elif defined(__CUDACC__)
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment + sizeof(T) * count;
    return nullptr;
#else
    return static_cast<T*>(emulation::take_shared(used_, arrays_, sizeof(T) * count, kAlignment));
#endif
  }
  size_t bytes() const {
    return used_;
  }

 private:
  size_t used_ = 0;
#if !defined(__CUDACC__)
  int arrays_ = 0;
#endif
};

// Bytes that Layout(arena, arguments...) takes.
template <typename Layout, typename... A>
size_t shared_bytes(const A&... arguments) {
  SharedArena arena;
  const Layout layout(arena, arguments...);
  static_cast<void>(layout);
  return arena.bytes();
}

// How a kernel is started. `name` is the kernel's, for messages and the check that every kernel of
// the tree is tested.
struct Launch {
  const char* name;
  dim3 grid;
  dim3 block;
  size_t shared = 0;
};

// Starts a kernel on the current stream. Throws Error naming it when it cannot be started.
template <typename... P, typename... A>
void launch(const Launch& how, void (*kernel)(P...), const A&... arguments) {
  if (how.grid.x == 0 || how.grid.y == 0 || how.grid.z == 0) return;  // nothing to do
  note_launch(how.name);
#if defined(__CUDACC__)
  if (how.shared > size_t{48} * 1024) {
    allow_shared_memory(how.name, reinterpret_cast<const void*>(kernel), how.shared);
  }
  kernel<<<how.grid, how.block, how.shared, static_cast<cudaStream_t>(stream())>>>(
      static_cast<P>(arguments)...);
  check_launch(how.name);
#else
  emulation::require_launchable(how.name, how.grid, how.block, how.shared);
  int place = 0;
  (emulation::refuse_host_memory(how.name, ++place, static_cast<P>(arguments)), ...);
  emulation::submit([how, kernel, ... values = static_cast<P>(arguments)] {
    emulation::run(how.name, how.grid, how.block, how.shared, [&] { kernel(values...); });
  });
#endif
}

// Blocks of `per_block` that hold `count` items; throws Error beyond what a grid can be.
inline unsigned blocks_for(int64_t count, int64_t per_block) {
  const int64_t blocks = (count + per_block - 1) / per_block;
  require(blocks <= std::numeric_limits<int32_t>::max(), "CUDA: ", count,
          " items are more than the ", per_block * std::numeric_limits<int32_t>::max(),
          " that one launch can cover; make the micro-batch or the context smaller");
  return static_cast<unsigned>(blocks);
}

// A tensor's elements as kernels see them. Throws Error when dtype or device do not fit.
template <typename T>
struct KernelDType {
  static constexpr DType value = DTypeOf<T>::value;
};
template <>
struct KernelDType<kernel_bf16> {
  static constexpr DType value = DType::bf16;
};
template <typename T>
T* pointer(const Tensor& t) {
  constexpr DType kDType = KernelDType<std::remove_const_t<T>>::value;
  require(t.defined() && t.dtype() == kDType && t.device().kind == DeviceKind::cuda,
          "CUDA: expected a tensor of ", name_of(kDType), " on the device");
  require_current(t.device().index);
  return static_cast<T*>(t.raw());
}
// The same; null for an undefined tensor.
template <typename T>
T* pointer_or_null(const Tensor& t) {
  return t.defined() ? pointer<T>(t) : nullptr;
}

// Calls body with a value of the element type: float or kernel_bf16. Throws Error for other dtypes.
template <typename Body>
void dispatch(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(kernel_bf16{});
    default:
      throw Error(concat("CUDA: this operation has kernels for f32 and bf16, not for ",
                         name_of(dtype), "; use --device cpu"));
  }
}

// Loads and stores convert to the type that kernels compute in.
__device__ __forceinline__ float load(const float* from) {
  return *from;
}
__device__ __forceinline__ float load(const kernel_bf16* from) {
  return __bfloat162float(*from);
}
__device__ __forceinline__ double load(const double* from) {
  return *from;
}
__device__ __forceinline__ void store(double* to, double value) {
  *to = value;
}
__device__ __forceinline__ void store(float* to, float value) {
  *to = value;
}
__device__ __forceinline__ void store(kernel_bf16* to, float value) {
  *to = __float2bfloat16(value);
}

// The index of this thread in a one-dimensional grid.
__device__ __forceinline__ int64_t global_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

}  // namespace linnet::cuda
