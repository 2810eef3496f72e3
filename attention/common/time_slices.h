// Pieces of batches along time.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace linnet {

// A copy of tokens [begin, end) of x [B,T,...]; undefined stays undefined.
Tensor slice_time(const Tensor& x, int64_t begin, int64_t end);

// Pieces [B,n,...], at least one, joined along time and converted.
Tensor join_time(const std::vector<Tensor>& pieces, DType dtype);

}  // namespace linnet
