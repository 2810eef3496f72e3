#include "attention/cosformer/cuda/proportions.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

Tensor position_proportions(const Tensor& positions, int64_t heads, int64_t length, bool clamp) {
  const Tensor result =
      Tensor::empty({positions.size(0), positions.size(1), heads}, DType::f32, positions.device());
  const auto* at = pointer<const int32_t>(positions);
  float* out = pointer<float>(result);
  for_each("position_proportions", result.elements(), [=] __device__(int64_t i) {
    const int64_t position = at[i / heads];
    const double p = static_cast<double>(position) / static_cast<double>(length);
    float proportion = p < 1 ? static_cast<float>(p) : 1.0f;
    if (!clamp && position >= length) proportion = std::numeric_limits<float>::quiet_NaN();
    out[i] = proportion;
  });
  return result;
}

}  // namespace linnet::cuda
