// Chunks of equal length of a sequence that overlap, as rows of a batch of their own.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Rows [B n, size + 2 overlap, ...] of x [B,T,...], n = ceil(T / size): row c of a sequence holds
// its tokens [c size - overlap, (c + 1) size + overlap), zeros where there is none.
// Differentiable.
Variable overlapping_chunk_rows(const Variable& x, int64_t size, int64_t overlap);

}  // namespace linnet
