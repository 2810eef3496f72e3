// One value per token and head made of the layer's input, before its sigmoid or softplus.
#pragma once

#include <string>

#include "attention/mechanism.h"

namespace linnet {

// w_h . x_t, plus b_h where there is a bias.
class HeadLogits {
 public:
  HeadLogits() = default;
  // Declares "NAME.weight" [H,E] in `own`.
  HeadLogits(const std::string& name, const MixerOptions& options, const ParameterScope& own);
  // x [B,T,E], bias [H] or undefined -> [B,T,H] in f32, in f64 where x is. Throws UsageError where
  // x is undefined.
  Variable operator()(const Variable& x, const Variable& bias = {}) const;
  // That of the weight; nothing without one.
  void add_cost(const MixerShape& shape, MixerCost& cost) const;

 private:
  std::string name_;
  Variable weight_;
};

// w_h . x_t in a literal definition.
template <typename Number>
Number head_logit(const ReferenceSequence<Number>& s, const std::string& name, int64_t t,
                  int64_t h) {
  return dot_product(&s.parameter(name + ".weight")[static_cast<size_t>(h * s.E)],
                     &s.x[static_cast<size_t>(t * s.E)], s.E);
}

}  // namespace linnet
