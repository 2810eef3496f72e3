// Sums, products, scaling, views and conversions of variables.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// a + b, a - b, a * b, a / b element by element, of equal dtypes. Shapes broadcast as NumPy's:
// counted from the last dimension, sizes are equal, or one of them is 1 or missing and repeated.
// Throws Error naming both shapes otherwise.
Variable add(const Variable& a, const Variable& b);
Variable subtract(const Variable& a, const Variable& b);
Variable multiply(const Variable& a, const Variable& b);
Variable divide(const Variable& a, const Variable& b);
// Inner products along the last dimension: a, b [..,n] of one shape -> [..,1]. Sums in double; it
// keeps nothing but a and b.
Variable dot(const Variable& a, const Variable& b);
// alpha * a + beta * b, equal shapes and dtypes.
Variable weighted_sum(const Variable& a, double alpha, const Variable& b, double beta);
// factor * x.
Variable scale(const Variable& x, double factor);
// The same elements under another shape (no copy).
Variable reshape(const Variable& x, const Shape& shape);
// x in another floating dtype; the gradient is converted back.
Variable cast(const Variable& x, DType dtype);
// The single element of x in every place of a tensor of that shape.
Variable repeat(const Variable& x, const Shape& shape);
// Sum of all elements as an f64 scalar beside x.
Variable sum_all(const Variable& x);

}  // namespace linnet
