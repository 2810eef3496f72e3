#include "attention/common/step_decay.h"

#include "attention/common/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/linear.h"

namespace linnet {
namespace {

constexpr double kShortestStep = 1e-3, kLongestStep = 0.1, kSlowest = 1, kFastest = 16;

// values[i] = value(a uniform number of its own).
template <typename F>
Initializer init_from_uniform(const F& value) {
  return [value](const Tensor& values, const RandomKey& key) {
    for (int64_t i = 0; i < values.elements(); ++i) {
      values.slice(i, {}).fill(value(key.uniform(static_cast<uint64_t>(i))));
    }
  };
}

}  // namespace

StepDecay::StepDecay(const MixerOptions& options, const ParameterScope& own)
    : heads_(options.heads), width_(options.width) {
  weight_ = own.parameter("step.weight", {heads_, width_}, init_xavier(1, width_, heads_));
  bias_ = own.parameter("rates.step_bias", {heads_}, init_from_uniform([](double u) {
                          const double step =
                              kShortestStep * std::pow(kLongestStep / kShortestStep, u);
                          return std::log(std::expm1(step));
                        }));
  log_rate_ = own.parameter("rates.log_rate", {heads_}, init_from_uniform([](double u) {
                              return std::log(kSlowest + (kFastest - kSlowest) * u);
                            }));
}

StepDecay::Steps StepDecay::operator()(const Variable& x) const {
  require_usage(x.defined(),
                "the decay reads the layer's input, which a run of the core alone lacks; give "
                "inputs/x");
  const DType dtype = sum_dtype(x.dtype());
  const Variable step =
      softplus(linear(as_dtype(x, dtype), as_dtype(weight_, dtype), as_dtype(bias_, dtype)));
  return {reshape(step, {step.size(0), step.size(1), heads_, 1}),
          multiply(scale(exp(as_dtype(log_rate_, dtype)), -1), step)};
}

void StepDecay::add_cost(const MixerShape& shape, MixerCost& cost) const {
  const auto weights = static_cast<double>(heads_ * width_);
  cost.projections += static_cast<double>(shape.batch * shape.queries) * weights;
  cost.bytes +=
      weights * static_cast<double>(size_of(shape.dtype)) +
      2 * static_cast<double>(heads_) * static_cast<double>(size_of(sum_dtype(shape.dtype)));
}

}  // namespace linnet
