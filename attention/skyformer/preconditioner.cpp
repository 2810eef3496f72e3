#include "attention/skyformer/preconditioner.h"

#include <cmath>

#include "attention/primitives/matrices/matrices.h"
#include "autograd/activation.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/layout.h"
#include "autograd/products.h"
#include "autograd/reductions.h"

namespace linnet {

Variable row_kernel(const Variable& x) {
  const Variable halves = scale(dot(x, x), 0.5);
  const Variable squares = add(halves, transpose(halves, 1, 2));
  const Variable distances = subtract(squares, matmul(x, x, Transpose::no, Transpose::yes));
  // Rounding may have put them below 0.
  const double factor = -1 / std::sqrt(static_cast<double>(x.size(2)));
  return exp(scale(activate(distances, Activation::relu), factor));
}

Preconditioned precondition(const Variable& kernel, double gamma) {
  const DType dtype = kernel.dtype();
  const Device device = kernel.value().device();
  const int64_t r = kernel.size(2);
  const Variable units(unit_values(1, r, 1, dtype, device).reshape({r, r}));
  const Variable matrix = add(kernel, scale(units, gamma));
  const Variable one(Tensor::full({}, 1, dtype, device));
  const Variable roots = divide(one, sqrt(sum(matrix, -1)));
  return {multiply(multiply(matrix, roots), transpose(roots, 1, 2)), roots};
}

}  // namespace linnet
