// How dense LARA's proposals are where they were drawn. In f32 (f64 on the CPU), densities in f64.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// mass_c - log sum_o exp(scale (w_c . m_o - |m_o|^2 / 2)), f64 [B,H,C], over the landmarks o that
// have tokens: those whose mass (f64 [B,H,C]) is above -infinity, which the others keep. w, m
// [B,H,C,K]. Differentiable in all.
Variable relative_mass(const Variable& mass, const Variable& w, const Variable& m, double scale);

}  // namespace linnet
