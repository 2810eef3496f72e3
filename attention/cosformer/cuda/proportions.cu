#include "attention/cosformer/cuda/proportions.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

Tensor position_proportions(const Tensor& positions, const Shape& shape, int64_t length, bool clamp,
                            Device device) {
  const Tensor result = Tensor::empty(shape, DType::f32, device);
  const auto* at = pointer_or_null<const int32_t>(positions);
  float* out = pointer<float>(result);
  const int64_t tokens = shape[1], heads = shape[2];
  for_each("position_proportions", result.elements(), [=] __device__(int64_t i) {
    const int64_t token = i / heads, position = at != nullptr ? at[token] : token % tokens;
    const double p = static_cast<double>(position) / static_cast<double>(length);
    float proportion = p < 1 ? static_cast<float>(p) : 1.0f;
    if (!clamp && position >= length) proportion = std::numeric_limits<float>::quiet_NaN();
    out[i] = proportion;
  });
  return result;
}

}  // namespace linnet::cuda
