#include "attention/common/cuda/gaussian_kernel.h"

#include "attention/common/square_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {

void with_square(const Tensor& x, const Tensor& mask, bool is_key, const Tensor& dy,
                 const Tensor& to) {
  const SquareRule<float> rule{x.size(2), x.size(3), is_key, pointer<float>(x),
                               pointer_or_null<uint8_t>(mask)};
  const float* d = pointer_or_null<float>(dy);
  float* out = pointer<float>(to);
  for_each("with_square", to.elements(), [=] __device__(int64_t i) {
    out[i] = d != nullptr ? rule.gradient(d, i) : rule.value(i);
  });
}

}  // namespace linnet::cuda
