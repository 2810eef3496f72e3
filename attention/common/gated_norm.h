// The end of mixers without a denominator: the outputs of a head normalised, and a gate made of the
// layer's input.
#pragma once

#include "attention/mechanism.h"
#include "autograd/norms.h"

namespace linnet {

// norm(y) over a head's channels; gate: times silu(x W), W [E,E].
struct GatedNormSpec {
  bool gate = true;
  double epsilon = 1e-6;  // added to the mean square, or to the variance
  NormKind kind = NormKind::rms;
};

// The options `gate` and `epsilon`.
template <typename Params>
void describe_gated_norm(ConfigDescription<Params>& d) {
  d.field("gate", &Params::gate, "the normalised outputs times silu(x W)");
  d.field("epsilon", &Params::epsilon, "added to squares before their root divides").above(0);
}

class GatedNorm {
 public:
  // Declares "gate.weight" in the layer's own scope.
  GatedNorm(const GatedNormSpec& spec, const MixerOptions& options, const ParameterScope& own);
  // y [B,T,H,V], x [B,T,E], which only a gate needs. Throws UsageError where it is missing.
  Variable operator()(const Variable& y, const Variable& x) const;
  void add_cost(const MixerShape& shape, MixerCost& cost) const;

 private:
  GatedNormSpec spec_;
  int64_t width_;
  Variable gate_;
};

// The same of the context y [T,H,V] of a literal definition.
template <typename Number>
void apply_gated_norm(const GatedNormSpec& spec, const ReferenceSequence<Number>& s,
                      std::vector<Number>& y) {
  for (int64_t row = 0; row < s.T * s.H; ++row) {
    Number* out = &y[static_cast<size_t>(row * s.V)];
    Number mean = 0, square = 0;
    for (int64_t c = 0; c < s.V && spec.kind == NormKind::layer; ++c) {
      mean += out[c] / static_cast<Number>(s.V);
    }
    for (int64_t c = 0; c < s.V; ++c) {
      square += (out[c] - mean) * (out[c] - mean) / static_cast<Number>(s.V);
    }
    for (int64_t c = 0; c < s.V; ++c) {
      out[c] = (out[c] - mean) / std::sqrt(square + static_cast<Number>(spec.epsilon));
      if (!spec.gate) continue;
      const int64_t channel = row % s.H * s.V + c;
      const Number* weight = &s.parameter("gate.weight")[static_cast<size_t>(channel * s.E)];
      const Number z = dot_product(weight, &s.x[static_cast<size_t>(row / s.H * s.E)], s.E);
      out[c] *= z / (1 + std::exp(-z));
    }
  }
}

}  // namespace linnet
