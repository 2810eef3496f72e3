// Performer's stabilisers: maxima of groups of projections, as constants or as functions of them.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// The projections that have a maximum in common: those of one token and head, those of all tokens
// of a sequence and one head, all of a batch.
enum class MaximumOver : uint8_t { row, sequence, tensor };

struct MaximumGroups {
  MaximumOver over = MaximumOver::row;
  Tensor mask;      // u8 [B,T], 1 = valid; undefined: all. Others are never read.
  Tensor segments;  // i32 [B,T]: documents of a row (over: sequence); undefined: one per row
};

// The maximum of every row's group [B,T,H] from the rows' own (largest_projections). Masked rows of
// their own (over: row) have undefined values.
Tensor group_maxima(const Tensor& rows, const MaximumGroups& groups);

// Projections p [B,T,H,m] minus the maximum of their group, f32 or, on the CPU, f64.
// Differentiable, the maximum included: its gradient is shared evenly by the elements that attain
// it. Masked tokens have undefined values and gradients of 0.
Variable relative_to_maxima(const Variable& p, const MaximumGroups& groups);

}  // namespace linnet
