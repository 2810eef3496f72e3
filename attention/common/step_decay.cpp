#include "attention/common/step_decay.h"

#include "attention/common/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"

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
    : logits_("step", options, own) {
  bias_ = own.parameter("rates.step_bias", {options.heads}, init_from_uniform([](double u) {
                          const double step =
                              kShortestStep * std::pow(kLongestStep / kShortestStep, u);
                          return std::log(std::expm1(step));
                        }));
  log_rate_ = own.parameter("rates.log_rate", {options.heads}, init_from_uniform([](double u) {
                              return std::log(kSlowest + (kFastest - kSlowest) * u);
                            }));
}

StepDecay::Steps StepDecay::operator()(const Variable& x) const {
  if (!bias_.defined()) return {};
  const Variable step = softplus(logits_(x, bias_));
  return {reshape(step, {step.size(0), step.size(1), step.size(2), 1}),
          multiply(scale(exp(as_dtype(log_rate_, step.dtype())), -1), step)};
}

void StepDecay::add_cost(const MixerShape& shape, MixerCost& cost) const {
  if (!bias_.defined()) return;
  logits_.add_cost(shape, cost);
  cost.bytes += 2 * static_cast<double>(bias_.shape().elements()) *
                static_cast<double>(size_of(sum_dtype(shape.dtype)));
}

}  // namespace linnet
