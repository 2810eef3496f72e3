#include "attention/cosformer/proportions.h"

#include <algorithm>

#include "attention/cosformer/cuda/proportions.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet {

Tensor position_proportions(const Tensor& positions, const Shape& shape, int64_t length, bool clamp,
                            Device device) {
  require(!positions.defined() || positions.shape() == Shape({shape[0], shape[1]}),
          "cosformer: expected positions [", shape[0], ", ", shape[1], "], got ",
          positions.shape());
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) {
      return cuda::position_proportions(positions, shape, length, clamp, device);
    }
  }
  const Tensor result = Tensor::empty(shape, DType::f64);
  for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    const int64_t position = positions.defined() ? positions.data<int32_t>()[i] : i % shape[1];
    require_usage(clamp || position < length, "cosformer: position ", position,
                  " lies beyond the length ", length,
                  " that it was made for; raise max_length (or the training context), or set "
                  "beyond_max: clamp");
    const double p = static_cast<double>(position) / static_cast<double>(length);
    std::fill_n(result.data<double>() + i * shape[2], shape[2], std::min(p, 1.0));
  }
  return result;
}

}  // namespace linnet
