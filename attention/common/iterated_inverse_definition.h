// The iteration that approximates an inverse, by plain loops, for definitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace linnet {

// A square matrix [p,p].
template <typename Number>
using SquareMatrix = std::vector<Number>;

// Z_0 = A^T / norm, then Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4.
template <typename Number>
SquareMatrix<Number> iterated_inverse_definition(const SquareMatrix<Number>& a, size_t p,
                                                 int64_t steps, Number norm);

template <typename Number>
Number largest_column_sum(const SquareMatrix<Number>& a, size_t p);

}  // namespace linnet
