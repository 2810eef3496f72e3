// The same elements in another order or place: permutations, slices, joins, repetition. Dimensions
// may be negative, counted from the last. All dtypes that tensors have floating; bits are copied.
#pragma once

#include <vector>

#include "autograd/variable.h"

namespace linnet {

// Dimension d of the result is dimension order[d] of x; order names each dimension once.
Variable permute(const Variable& x, const std::vector<int64_t>& order);
// Dimensions a and b swapped.
Variable transpose(const Variable& x, int64_t a, int64_t b);
// Elements [begin, end) of a dimension. Throws Error beyond its size.
Variable slice(const Variable& x, int64_t dimension, int64_t begin, int64_t end);
// The parts one after the other along a dimension; their other sizes and dtypes are equal.
Variable concatenate(const std::vector<Variable>& parts, int64_t dimension);
// The same of tensors of any dtype; a slice of everything shares storage.
Tensor slice(const Tensor& x, int64_t dimension, int64_t begin, int64_t end);
Tensor concatenate(const std::vector<Tensor>& parts, int64_t dimension);
// x repeated to a shape, as NumPy broadcasts: sizes of 1 and missing leading dimensions are
// repeated. The gradient is the sum over the repetitions.
Variable expand(const Variable& x, const Shape& shape);

// expand() of a tensor.
Tensor expanded(const Tensor& x, const Shape& shape);
// The sum over all that broadcasting repeated, in double, in an order that shapes alone fix: x
// [shape that `shape` broadcasts to] -> [shape]. Gradients of operations that broadcast.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace linnet
