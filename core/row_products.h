// Products of a few rows with a matrix, as steps of generation make them: bound by reading the
// matrix once, and the same bits for a row whatever the other rows are.
#pragma once

#include "core/packed_weights.h"
#include "core/tensor.h"

namespace linnet {

// As many rows as are taken at most: beyond them a blocked product is faster.
inline constexpr int64_t kMaxProductRows = 64;

// c [m,n] = a [m,k] b^T, b [n,k], plus c where `accumulate`. a and b are f32 or bf16, c too; sums
// are f32 and added in an order that depends on k alone. On the host. m is at most
// kMaxProductRows.
void row_products(const Tensor& a, const Tensor& b, const Tensor& c, int64_t m, int64_t n,
                  int64_t k, bool accumulate);

// The same with packed b [n,k], a and c f32. Of int8 the scale is a factor of the sum.
void packed_row_products(const Tensor& a, const PackedMatrix& b, const Tensor& c, int64_t m,
                         int64_t n, int64_t k, bool accumulate);

}  // namespace linnet
