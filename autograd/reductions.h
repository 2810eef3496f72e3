// Sums, means, maxima and softmax along one dimension, which may be negative, counted from the
// last. Reductions keep it with size 1, so that results broadcast against x; reshape drops it. Sums
// run in a fixed order, in double for sum and mean, else in the computing type.
#pragma once

#include "autograd/variable.h"

namespace linnet {

Variable sum(const Variable& x, int64_t dimension);
Variable mean(const Variable& x, int64_t dimension);
// The largest; the gradient goes to the first of equal ones. NaN wins. Throws Error where the
// dimension is empty.
Variable max(const Variable& x, int64_t dimension);
// log(sum(exp(x))) without overflow; -infinity where all of x is, with gradient 0.
Variable logsumexp(const Variable& x, int64_t dimension);
// exp(x - logsumexp(x)); 0 where all of x is -infinity (a row of which everything is masked).
Variable softmax(const Variable& x, int64_t dimension);
// y_i = x_0 + ... + x_i along the dimension, or x_i + ... + x_last when `reverse`.
Variable cumulative_sum(const Variable& x, int64_t dimension, bool reverse = false);

}  // namespace linnet
