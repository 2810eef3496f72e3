// Slices of sequences along time, with gradients.
#pragma once

#include <vector>

#include "autograd/variable.h"

namespace linnet {

// Tokens [begin, end) of x [B,T,...]; undefined stays undefined. Throws Error beyond T.
Variable tokens_of(const Variable& x, int64_t begin, int64_t end);
Tensor tokens_of(const Tensor& x, int64_t begin, int64_t end);

// Concatenates slices [B,n,...], at least one and all of one dtype, along time.
Variable join_tokens(const std::vector<Variable>& slices);
Tensor join_tokens(const std::vector<Tensor>& slices);

}  // namespace linnet
