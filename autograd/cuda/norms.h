// Norms on a CUDA device; autograd/norms.h calls them.
#pragma once

#include "autograd/norms.h"

namespace linnet::cuda {

// y = norm(x) over rows of x.size(-1) channels; mean and rstd [rows], f32, are written for
// backward. gain and bias may be undefined; their dtype is that of x.
void norm_forward(const Tensor& x, const Tensor& gain, const Tensor& bias, const NormSpec& spec,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd);

// sum = residual + dropout(branch), [B, T, C], and y = norm(sum) in one kernel, with the bits of
// both alone. The rest as norm_forward.
void residual_norm_forward(const Tensor& residual, const Tensor& branch, const DropoutSpec& dropout,
                           const Tensor& gain, const Tensor& bias, const NormSpec& spec,
                           const Tensor& sum, const Tensor& y, const Tensor& mean,
                           const Tensor& rstd);

struct NormGradients {
  Tensor dx;       // plus dsum where defined
  Tensor dbranch;  // what dropout lets through of dx; dx itself without dropout
  // f32 [some rows, gains or channels] whose sum over the first dimension is the gradient of gain
  // and bias; undefined where not wanted.
  Tensor gain_partial, bias_partial;
};
NormGradients norm_backward(const Tensor& x, const Tensor& gain, const Tensor& mean,
                            const Tensor& rstd, const NormSpec& spec, const Tensor& dy,
                            const Tensor& dsum, const DropoutSpec& dropout, bool gain_wanted,
                            bool bias_wanted);

}  // namespace linnet::cuda
