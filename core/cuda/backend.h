// Which CUDA backend this build has. Backends are alternative builds of the same sources.
#pragma once

#include <string_view>

#include "core/cuda/build_backend.h"
#include "core/tensor.h"

namespace linnet {

enum class CudaBackend : uint8_t { off, emulated, on };
inline constexpr CudaBackend kCudaBackend = CudaBackend::LINNET_CUDA_BACKEND;
// Whether tensors can live on a CUDA device at all: `if constexpr (kCuda)` guards every call into
// the cuda namespace, which other builds do not link.
inline constexpr bool kCuda = kCudaBackend != CudaBackend::off;

// "off", "emulated" or "on".
constexpr std::string_view name_of(CudaBackend backend) {
  return backend == CudaBackend::off ? "off" : backend == CudaBackend::emulated ? "emulated" : "on";
}

inline bool on_cuda(const Tensor& t) {
  return kCuda && t.defined() && t.device().kind == DeviceKind::cuda;
}

}  // namespace linnet
