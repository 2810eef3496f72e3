// Gradient norms and clipping over the flat gradient buffer.
#pragma once

#include <string>
#include <vector>

#include "optim/groups.h"

namespace linnet {

// The L2 norm of all elements of a flat f32 or f64 CPU tensor, accumulated in double in an order
// that does not depend on the number of threads. NaN or infinite when an element is.
double global_norm(const Tensor& gradients);

// The factor that brings gradients of this norm down to `limit`; 1 when they are within it or limit
// is 0 (no clipping). For StepRates::gradient_scale. Throws Error when the norm is not finite.
double clip_factor(double norm, double limit);

// Clamps every element to [-limit, limit] in place, limit > 0; NaN stays NaN.
void clip_by_value(const Tensor& gradients, double limit);

// The name of the first parameter with a NaN or infinite element, "" when all are finite.
std::string first_non_finite(const Tensor& gradients, const std::vector<ParameterSpan>& layout);

}  // namespace linnet
