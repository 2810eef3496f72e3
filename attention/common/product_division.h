// The division of attention whose numerator and denominator use different features.
#pragma once

#include "attention/primitives/linear_attention/linear_attention.h"

namespace linnet {

// y [B,T,H,V] = numerators / D(queries . sums): numerators [B,T,H,V], queries and sums [B,T,H,K],
// all f32 or all f64. D as Normalizer says (not `none`), with that floor; a clamped denominator
// passes no gradient. Masked queries (query_mask u8 [B,T], 1 = valid; undefined: all valid) give 0
// and are never read.
Variable divide_by_products(const Variable& numerators, const Variable& queries,
                            const Variable& sums, Normalizer normalizer, double floor,
                            const Tensor& query_mask);

}  // namespace linnet
