#include "attention/common/block_diagonal.h"

#include "attention/common/mixer_support.h"
#include "attention/primitives/matrices/matrices.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"

namespace linnet {

Variable block_diagonal(const Variable& weight) {
  const int64_t H = weight.size(0), N = weight.size(1), K = weight.size(2);
  const Tensor units = unit_values(1, H, 1, sum_dtype(weight.dtype()), weight.value().device());
  const Variable own(units.to(weight.dtype()).reshape({H, 1, H, 1}));
  return reshape(multiply(reshape(weight, {H, N, 1, K}), own), {H * N, H * K});
}

Variable head_linear(const Variable& x, const Variable& weight, const Variable& bias) {
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2);
  const Variable rows = reshape(x, {B, T, H * x.size(3)});
  return reshape(linear(rows, block_diagonal(weight), bias), {B, T, H, weight.size(1)});
}

}  // namespace linnet
