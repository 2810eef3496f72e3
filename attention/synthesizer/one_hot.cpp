#include "attention/synthesizer/one_hot.h"

#include "attention/synthesizer/cuda/one_hot.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet {

Tensor one_hot_positions(const Tensor& positions, int64_t heads, int64_t count, DType dtype) {
  require(positions.dtype() == DType::i32 && positions.shape().rank() == 2,
          "one_hot_positions: expected i32 [B,T], got ", name_of(positions.dtype()), " ",
          positions.shape());
  const Shape shape{positions.size(0), positions.size(1), heads, count};
  if constexpr (kCuda) {
    if (on_cuda(positions)) {
      const Tensor rows = Tensor::empty(shape, dtype, positions.device());
      cuda::one_hot_positions(positions, rows);
      return rows;
    }
  }
  const Tensor rows = Tensor::zeros(shape, DType::f32);
  for (int64_t i = 0; i < positions.elements() * heads; ++i) {
    const int32_t position = positions.data<int32_t>()[i / heads];
    if (position >= 0 && position < count) rows.data<float>()[i * count + position] = 1;
  }
  return rows.to(dtype);
}

}  // namespace linnet
