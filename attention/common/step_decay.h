// Steps of time made of the layer's input, and how much a head's state fades in each: the decay of
// Mamba-2 (Dao and Gu 2024) and Gated DeltaNet (Yang et al. 2024).
#pragma once

#include <utility>

#include "attention/common/head_logits.h"

namespace linnet {

// step = softplus(x W + b), log_decay = -exp(r) step, for every token and head.
class StepDecay {
 public:
  StepDecay() = default;
  // Declares "step.weight" W [H,E], "rates.step_bias" b [H] and "rates.log_rate" r [H] in `own`:
  // without input steps are log-uniform between 0.001 and 0.1, and exp(r) uniform between 1 and 16,
  // as in the released Mamba-2.
  StepDecay(const MixerOptions& options, const ParameterScope& own);
  struct Steps {
    Variable step;       // [B,T,H,1], f32 or f64
    Variable log_decay;  // [B,T,H]
  };
  // x [B,T,E]. Throws UsageError where it is undefined. Nothing without parameters.
  Steps operator()(const Variable& x) const;
  // Nothing without parameters.
  void add_cost(const MixerShape& shape, MixerCost& cost) const;

 private:
  HeadLogits logits_;
  Variable bias_, log_rate_;
};

// {step, log_decay} of a token and head in a literal definition.
template <typename Number>
std::pair<Number, Number> step_decay_definition(const ReferenceSequence<Number>& s, int64_t t,
                                                int64_t h) {
  const auto at = static_cast<size_t>(h);
  const Number logit = head_logit(s, "step", t, h) + s.parameter("rates.step_bias")[at];
  const Number step = std::max(logit, Number{0}) + std::log1p(std::exp(-std::abs(logit)));
  return {step, -std::exp(s.parameter("rates.log_rate")[at]) * step};
}

}  // namespace linnet
