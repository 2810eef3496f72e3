// Maps and norms over all heads of a vector.
#pragma once

#include <cmath>

#include "attention/common/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"
#include "autograd/norms.h"
#include "layers/parameters.h"

namespace linnet {

// A linear map of vectors of the model's width.
struct WideMap {
  Variable weight, bias;

  WideMap() = default;
  WideMap(const ParameterScope& scope, int64_t outputs, int64_t width, bool biased)
      : weight(scope.parameter("weight", {outputs, width}, init(width))) {
    if (biased) bias = scope.parameter("bias", {outputs}, init(width));
  }
  static Initializer init(int64_t width) {
    return init_uniform(1 / std::sqrt(static_cast<double>(width)));
  }
  Variable operator()(const Variable& x) const {
    return linear(x, as_dtype(weight, x.dtype()),
                  bias.defined() ? as_dtype(bias, x.dtype()) : Variable());
  }
};

// A layer norm over all heads of vectors [B,N,H,K]; without parameters the identity.
struct WideNorm {
  Variable gain, bias;

  WideNorm() = default;
  WideNorm(const ParameterScope& scope, int64_t width)
      : gain(scope.parameter("gain", {width}, init_constant(1))),
        bias(scope.parameter("bias", {width}, init_constant(0))) {}
  Variable operator()(const Variable& x) const {
    if (!gain.defined()) return x;
    const Variable joined = reshape(x, {x.size(0), x.size(1), x.size(2) * x.size(3)});
    return reshape(
        norm(joined, as_dtype(gain, x.dtype()), as_dtype(bias, x.dtype()), {NormKind::layer, 1e-5}),
        x.shape());
  }
};

}  // namespace linnet
