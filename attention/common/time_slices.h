// Slices of batches along time.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace linnet {

// A copy of tokens [begin, end) of x [B,T,...]; undefined stays undefined.
Tensor slice_time(const Tensor& x, int64_t begin, int64_t end);

// Concatenates slices [B,n,...], at least one, along time and converts them to `dtype`.
Tensor join_time(const std::vector<Tensor>& slices, DType dtype);

}  // namespace linnet
