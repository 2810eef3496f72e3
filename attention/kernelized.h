// What the mixers of the form phi(q) (sum phi(k) v^T) share: soft-max-free attention whose state
// has a constant size.
#pragma once

#include "attention/primitives/linear_attention.h"
#include "attention/registry.h"

namespace linnet {

// The common options of these mechanisms. Params has members `scale`, `floor`, `normalizer`.
template <typename Params>
void describe_normalizer(ConfigDescription<Params>& d) {
  d.field("floor", &Params::floor, "epsilon of the denominator").above(0);
  d.choice("normalizer", &Params::normalizer,
           {{"clamp", Normalizer::clamp}, {"add", Normalizer::add}},
           "denominator max(x, floor) or x + floor");
}

// Positions re-weighting multiplies: one proportion per token and head, both or neither.
struct Proportions {
  Variable query, key;
};

// phi(q_i) S / D(phi(q_i) . z) in the form of `options`, continuing from and leaving state S
// [B,H,m,V], z [B,H,m].
AttentionMixer::MixResult kernelized_mix(const LinearAttentionOptions& attention,
                                         const MixerOptions& options, const MixInput& input,
                                         const Proportions& proportions,
                                         const MixerContext& context, const MixerState& state);

// The denominator of a literal definition.
template <typename Number>
Number reference_denominator(Normalizer normalizer, double floor, Number x) {
  const auto epsilon = static_cast<Number>(floor);
  return normalizer == Normalizer::add ? x + epsilon : std::max(x, epsilon);
}

}  // namespace linnet
