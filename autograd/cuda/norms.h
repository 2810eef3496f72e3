// Norms on a CUDA device; autograd/norms.h calls them.
#pragma once

#include "autograd/norms.h"

namespace linnet::cuda {

// y = norm(x) over rows of x.size(-1) channels; mean and rstd [rows], f32, are written for
// backward. gain and bias may be undefined; their dtype is that of x.
void norm_forward(const Tensor& x, const Tensor& gain, const Tensor& bias, const NormSpec& spec,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd);

// dx, plus dsum where defined.
struct NormGradients {
  Tensor dx;
  // f32 [some rows, gains or channels] whose sum over the first dimension is the gradient of gain
  // and bias; undefined where not wanted.
  Tensor gain_partial, bias_partial;
};
NormGradients norm_backward(const Tensor& x, const Tensor& gain, const Tensor& mean,
                            const Tensor& rstd, const NormSpec& spec, const Tensor& dy,
                            const Tensor& dsum, bool gain_wanted, bool bias_wanted);

}  // namespace linnet::cuda
