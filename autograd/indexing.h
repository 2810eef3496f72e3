// Elements by index along one dimension.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Rows by number: x [...,n,inner...] and index i32 [...,m] -> y [...,m,inner...] with y[..,i,..] =
// x[..,index[..,i],..]; the leading dimensions of both are equal, index has one more. -1 gives a
// row of zeros. Other indices outside of [0, n) throw Error on the CPU; on a device they give
// zeros. The gradient adds up rows that were taken more than once, in order of i, in double.
Variable gather(const Variable& x, const Tensor& index);
// The same where no row is taken twice, with the inverse of the index: i32 [...,n], the place in
// the index of each row of x, -1 where it is not taken. Its gradient is a copy too.
Variable gather(const Variable& x, const Tensor& index, const Tensor& inverse);

// The sum of rows by number: x [...,m,inner...] and index i32 [...,m] -> y [...,n,inner...] with
// y[..,j,..] = the sum of x[..,i,..] over the i with index[..,i] = j, in order of i.
// Rows whose index is -1 are left out. Errors as gather.
Variable scatter_add(const Variable& x, const Tensor& index, int64_t n);

}  // namespace linnet
