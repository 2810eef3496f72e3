// Pieces of sequences along time.
#pragma once

#include <vector>

#include "autograd/variable.h"

namespace linnet {

// Tokens [begin, end) of x [B,T,...]; undefined stays undefined. Throws Error beyond T.
Variable tokens_of(const Variable& x, int64_t begin, int64_t end);
Tensor tokens_of(const Tensor& x, int64_t begin, int64_t end);

// Pieces [B,n,...] one after the other, at least one; all of one dtype.
Variable join_tokens(const std::vector<Variable>& pieces);

}  // namespace linnet
