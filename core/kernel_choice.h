// Which kernels of attention compute on a GPU: plain ones, which cover everything, or those on
// tensor cores, which cover some of it and round operands of products to bf16. `backend` in recipes
// and on the command line; `cudnn` in recipes alone.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/tensor.h"

namespace linnet {

// `automatic` takes tensor cores where they cover a call, and says once for each reason why they do
// not cover one in bf16 or of a model in bf16; `tensor_cores` refuses such a call. `cudnn` takes
// cuDNN's kernels for softmax attention whose gradients are wanted, and refuses what these do not
// cover; without gradients (validation, sampling) it is `automatic`.
enum class KernelChoice : uint8_t { automatic, plain, tensor_cores, cudnn };

// Of a command line; `cudnn` is for recipes. Throws UsageError that lists the names: auto, plain,
// tensor_cores.
KernelChoice kernel_choice_from_name(std::string_view name);

// The choice for this thread's calls: automatic until UseKernels says otherwise.
KernelChoice kernel_choice();

// While this lives, calls of this thread take these kernels. Work on `device` alone: throws
// UsageError where tensor cores or cuDNN are demanded of a CPU, or cuDNN where there is none.
class UseKernels {
 public:
  UseKernels(KernelChoice choice, Device device);
  ~UseKernels();
  UseKernels(const UseKernels&) = delete;
  UseKernels& operator=(const UseKernels&) = delete;

 private:
  KernelChoice before_;
};

// The dtype of the activations of the model that this thread computes: f32 until ActivationsIn says
// otherwise.
DType activation_dtype();

// While this lives, this thread computes a model in bf16, or in f32: in a model in bf16, calls
// whose f32 tensors a mechanism computed from bf16 activations may be expected on tensor cores.
class ActivationsIn {
 public:
  explicit ActivationsIn(DType dtype);
  ~ActivationsIn();
  ActivationsIn(const ActivationsIn&) = delete;
  ActivationsIn& operator=(const ActivationsIn&) = delete;

 private:
  DType before_;
};

// Shorter calls (decoding token by token) would leave chunks on tensor cores mostly empty: the
// plain kernels take them, whatever was chosen.
inline constexpr int64_t kMinTensorCoreTokens = 16;

// For an operation on x that has plain kernels alone, x a tensor [B,T,...]: throws UsageError where
// tensor cores are demanded of a device.
void require_plain_allowed(std::string_view operation, const Tensor& x);

}  // namespace linnet
