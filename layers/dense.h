// The affine map of a head: weight and bias by name.
#pragma once

#include <string>

#include "autograd/linear.h"
#include "layers/parameters.h"
#include "layers/token_mixer.h"

namespace linnet {

class Dense {
 public:
  // Parameters NAME.weight [out, in] and NAME.bias [out].
  Dense(const ParameterScope& scope, const std::string& name, const std::string& init, int64_t in,
        int64_t out)
      : weight_(scope.parameter(name + ".weight", {out, in}, projection_init(init, 1, in, out))),
        bias_(scope.parameter(name + ".bias", {out}, init_constant(0))) {}
  Variable operator()(const Variable& x, Activation activation = Activation::none) const {
    return linear(x, weight_, bias_, activation);
  }

 private:
  Variable weight_, bias_;
};

}  // namespace linnet
