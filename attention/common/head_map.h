// A linear map, optionally followed by a norm, on the vectors of single heads: one map for all
// heads.
#pragma once

#include "attention/common/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"
#include "autograd/norms.h"
#include "layers/parameters.h"

namespace linnet {

struct HeadMap {
  static constexpr double kEpsilon = 1e-5;
  Variable weight, bias, gain, shift;  // [K,K], [K], [K], [K]

  HeadMap() = default;
  HeadMap(const ParameterScope& scope, int64_t K, const Initializer& init, bool normed = true)
      : weight(scope.parameter("weight", {K, K}, init)),
        bias(scope.parameter("bias", {K}, init_constant(0))) {
    if (!normed) return;
    gain = scope.parameter("norm.gain", {K}, init_constant(1));
    shift = scope.parameter("norm.bias", {K}, init_constant(0));
  }

  // x [B,T,H,K]; without parameters x itself.
  Variable operator()(const Variable& x) const {
    if (!weight.defined()) return x;
    const Variable rows = reshape(x, {x.size(0), x.size(1) * x.size(2), x.size(3)});
    const auto like = [&](const Variable& p) { return as_dtype(p, x.dtype()); };
    Variable y = linear(rows, like(weight), like(bias));
    if (gain.defined()) y = norm(y, like(gain), like(shift), {NormKind::layer, kEpsilon});
    return reshape(y, x.shape());
  }
};

}  // namespace linnet
