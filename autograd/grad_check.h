// Gradient checking: analytic gradients against central finite differences, in double.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/variable.h"

namespace linnet {

struct GradCheckOptions {
  double step = 1e-6;
  double absolute = 1e-5;  // the bounds PyTorch's gradcheck uses
  double relative = 1e-3;
  // 0: every element of every input. Otherwise this many random directions per input.
  int directions = 0;
  uint64_t seed = 1;
};

struct GradCheckResult {
  bool passed = true;
  double worst = 0;     // largest |analytic - numeric| / (absolute + relative * |numeric|)
  std::string message;  // names the input, the element and both values of the first failure
};

// Checks d(sum_k w_k . function(inputs)_k)/d(inputs) for fixed pseudo-random weights w. Inputs must
// be f64; undefined ones are passed through. Non-finite values fail.
GradCheckResult grad_check(
    const std::function<std::vector<Variable>(const std::vector<Variable>&)>& function,
    const std::vector<Tensor>& inputs, const GradCheckOptions& options = {});

}  // namespace linnet
