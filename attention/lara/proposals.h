// Densities of LARA's proposals at the points where they were drawn. In f32 (f64 on the CPU),
// densities in f64.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// log_normalizer_c - log sum_o exp(scale (w_c . m_o - |m_o|^2 / 2)), f64 [B,H,C]. The sum is over
// the landmarks o that have tokens; log_normalizer, f64 [B,H,C], is -infinity for the other
// landmarks, and so is the result. w, m [B,H,C,K]. Differentiable in all.
Variable relative_log_normalizer(const Variable& log_normalizer, const Variable& w,
                                 const Variable& m, double scale);

}  // namespace linnet
