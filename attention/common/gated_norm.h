// The end of mixers without a denominator: the outputs of a head normalised, and a gate of the
// layer's input.
#pragma once

#include "attention/mechanism.h"
#include "autograd/norms.h"

namespace linnet {

// norm(y) over a head's channels; gate: times silu(x W), W [E,E], after the norm or, with
// gate_first, before it.
struct GatedNormSpec {
  bool gate = true;
  double epsilon = 1e-6;
  bool gate_first = false;
  NormKind kind = NormKind::rms;  // or layer
};

// The options `gate` and `epsilon`.
template <typename Params>
void describe_gated_norm(ConfigDescription<Params>& d) {
  d.field("gate", &Params::gate, "outputs times silu(x W)");
  d.field("epsilon", &Params::epsilon, "added to mean squares before their root divides").above(0);
}

class GatedNorm {
 public:
  // Declares "gate.weight" in the layer's own scope.
  GatedNorm(const GatedNormSpec& spec, const MixerOptions& options, const ParameterScope& own);
  // y [B,T,H,V], x [B,T,E], which only a gate needs. In the dtype of y, that of x or a wider one.
  // Throws UsageError where x is missing.
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
    const auto multiply_by_gate = [&] {
      for (int64_t c = 0; c < s.V; ++c) {
        const int64_t channel = row % s.H * s.V + c;
        const Number* weight = &s.parameter("gate.weight")[static_cast<size_t>(channel * s.E)];
        const Number z = dot_product(weight, &s.x[static_cast<size_t>(row / s.H * s.E)], s.E);
        out[c] *= z / (1 + std::exp(-z));
      }
    };
    if (spec.gate && spec.gate_first) multiply_by_gate();
    Number mean = 0, square = 0;
    for (int64_t c = 0; c < s.V && spec.kind == NormKind::layer; ++c) {
      mean += out[c] / static_cast<Number>(s.V);
    }
    for (int64_t c = 0; c < s.V; ++c) {
      out[c] -= mean;
      square += out[c] * out[c] / static_cast<Number>(s.V);
    }
    for (int64_t c = 0; c < s.V; ++c) {
      out[c] /= std::sqrt(square + static_cast<Number>(spec.epsilon));
    }
    if (spec.gate && !spec.gate_first) multiply_by_gate();
  }
}

}  // namespace linnet
