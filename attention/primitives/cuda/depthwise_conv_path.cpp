// The one place that chooses between the kernels of depthwise convolutions.
#include "attention/primitives/cuda/depthwise_conv_path.h"

#include "attention/primitives/cuda/depthwise_conv_fast.h"
#include "attention/primitives/cuda/fall_back.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

void fall_back(const std::string& why) {
  // Those of short filters use no tensor cores.
  use_plain_kernels("depthwise convolution", why, "fast kernels");
}

}  // namespace

std::string why_plain_depthwise_conv(const Tensor& x, const Tensor& past, const Tensor& taps) {
  if (x.dtype() != DType::bf16) return concat("numbers of ", name_of(x.dtype()));
  const int64_t count = taps.size(-1);
  const bool is_short = count <= depthwise_conv_fast::kShortTaps;
  if (count > depthwise_conv_fast::kMostTaps) return concat("filters of ", count, " taps");
  if (!is_short && taps.shape().rank() == 3) {
    return concat("filters of ", count, " taps for each channel");
  }
  const int64_t multiple = is_short ? 4 : 8;
  if (x.size(3) == 0 || x.size(3) % multiple != 0) {
    return concat(count, " taps of values of ", x.size(3), ", which is no multiple of ", multiple);
  }
  for (const Tensor* sequence : {&x, &past}) {
    if (sequence->defined() && reinterpret_cast<uintptr_t>(sequence->raw()) % 16 != 0) {
      return "tensors that do not begin on 16 bytes";
    }
  }
  return {};
}

bool depthwise_conv_is_fast(const Tensor& x, const Tensor& past, const Tensor& taps) {
  if (kernel_choice() == KernelChoice::plain || x.size(1) < kFewestTensorCoreTokens) return false;
  const std::string why = why_plain_depthwise_conv(x, past, taps);
  if (why.empty()) return true;
  // Where they are not demanded, nobody expects fast kernels in f32.
  const bool expected = x.dtype() == DType::bf16;
  if (expected || kernel_choice() == KernelChoice::tensor_cores) fall_back(why);
  return false;
}

}  // namespace linnet::cuda
