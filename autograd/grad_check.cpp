#include "autograd/grad_check.h"

#include <cmath>

#include "core/random.h"

namespace linnet {
namespace {

using Function = std::function<std::vector<Variable>(const std::vector<Variable>&)>;

Tensor random_like(const Shape& shape, uint64_t seed, uint64_t site) {
  const Tensor result = Tensor::zeros(shape, DType::f64);
  const RandomKey key{seed, 0, site};
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

double dot(const Tensor& a, const Tensor& b) {
  double total = 0;
  for (int64_t i = 0; i < a.elements(); ++i) total += a.data<double>()[i] * b.data<double>()[i];
  return total;
}

double objective(const Function& function, const std::vector<Tensor>& inputs, uint64_t seed) {
  const NoGrad off;
  std::vector<Variable> variables;
  for (const Tensor& input : inputs)
    variables.push_back(input.defined() ? Variable(input) : Variable());
  const std::vector<Variable> outputs = function(variables);
  double total = 0;
  for (size_t k = 0; k < outputs.size(); ++k) {
    total +=
        dot(outputs[k].value().to(DType::f64), random_like(outputs[k].shape(), seed, 1000 + k));
  }
  return total;
}

}  // namespace

GradCheckResult grad_check(const Function& function, const std::vector<Tensor>& inputs,
                           const GradCheckOptions& options) {
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) {
    require(!input.defined() || input.dtype() == DType::f64, "grad_check: inputs must be f64");
    variables.push_back(input.defined() ? Variable(input.clone(), true) : Variable());
  }
  const std::vector<Variable> outputs = function(variables);
  std::vector<Tensor> seeds;
  for (size_t k = 0; k < outputs.size(); ++k) {
    seeds.push_back(random_like(outputs[k].shape(), options.seed, 1000 + k).to(outputs[k].dtype()));
  }
  backward(outputs, seeds);

  GradCheckResult result;
  for (size_t n = 0; n < inputs.size(); ++n) {
    if (!inputs[n].defined()) continue;
    const int64_t count = inputs[n].elements();
    const Tensor gradient = variables[n].grad().defined()
                                ? variables[n].grad()
                                : Tensor::zeros(inputs[n].shape(), DType::f64);
    const int64_t trials = options.directions == 0 ? count : options.directions;
    for (int64_t trial = 0; trial < trials; ++trial) {
      Tensor direction = Tensor::zeros(inputs[n].shape(), DType::f64);
      if (options.directions == 0) {
        direction.data<double>()[trial] = 1;
      } else {
        direction = random_like(inputs[n].shape(), options.seed,
                                7919 * (n + 1) + static_cast<uint64_t>(trial));
      }
      const auto moved = [&](double step) {
        std::vector<Tensor> at = inputs;
        at[n] = inputs[n].clone();
        for (int64_t i = 0; i < count; ++i) {
          at[n].data<double>()[i] += step * direction.data<double>()[i];
        }
        return objective(function, at, options.seed);
      };
      const double numeric = (moved(options.step) - moved(-options.step)) / (2 * options.step);
      const double analytic = dot(gradient, direction);
      const double error =
          std::abs(analytic - numeric) / (options.absolute + options.relative * std::abs(numeric));
      if (!std::isnan(result.worst) && !(error <= result.worst)) result.worst = error;
      if (!(error <= 1) && result.passed) {
        result.passed = false;
        result.message = concat("input ", n, " ", inputs[n].shape(),
                                options.directions == 0 ? ", element " : ", direction ", trial,
                                ": analytic ", analytic, ", numeric ", numeric);
      }
    }
  }
  return result;
}

}  // namespace linnet
