#include "attention/common/landmarks/noise.h"

#include "attention/common/landmarks/cuda/noise.h"
#include "core/cuda/backend.h"

namespace linnet {

Tensor landmark_noise(const RandomKey& key, const Tensor& examples, const Tensor& x,
                      int64_t first) {
  const int64_t width = x.size(3), each = x.size(1) * x.size(2);
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::landmark_noise(key, examples, x, first);
  }
  const Tensor made = Tensor::empty(x.shape(), DType::f64);
  for (int64_t i = 0; i < made.elements(); ++i) {
    const int64_t row = i / width / each;
    made.data<double>()[i] =
        key.normal(random_element(static_cast<uint64_t>(examples.data<int64_t>()[row]),
                                  static_cast<uint64_t>(first + i / width % each),
                                  static_cast<uint64_t>(i % width), static_cast<uint64_t>(width)));
  }
  return made.to(x.dtype());
}

}  // namespace linnet
