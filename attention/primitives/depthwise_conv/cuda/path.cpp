// The one place that chooses between the kernels of depthwise convolutions.
#include "attention/primitives/depthwise_conv/cuda/path.h"

#include "attention/primitives/common/cuda/kernel_path.h"
#include "attention/primitives/depthwise_conv/cuda/fast.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {

std::string why_plain_depthwise_conv(const Tensor& x, const Tensor& past, const Tensor& taps) {
  if (std::string reason = unsupported_dtype({&x}); !reason.empty()) return reason;
  const int64_t count = taps.size(-1);
  const bool is_short = count <= depthwise_conv_fast::kShortTaps;
  if (count > depthwise_conv_fast::kMaxTaps) return concat("filters of ", count, " taps");
  if (!is_short && taps.shape().rank() == 3) {
    return concat("filters of ", count, " taps for each channel");
  }
  const int64_t multiple = is_short ? 4 : 8;
  if (x.size(3) == 0 || x.size(3) % multiple != 0) {
    return concat(count, " taps of values of ", x.size(3), ", which is no multiple of ", multiple);
  }
  return unsupported_alignment({&x, &past});
}

bool depthwise_conv_is_fast(const Tensor& x, const Tensor& past, const Tensor& taps) {
  // Those of short filters use no tensor cores.
  return takes_fast_kernels(
      "depthwise convolution", x, [&] { return why_plain_depthwise_conv(x, past, taps); },
      "fast kernels");
}

}  // namespace linnet::cuda
