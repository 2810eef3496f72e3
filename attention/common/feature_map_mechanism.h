// Shared code of the mixers of the form phi(q) (sum phi(k) v^T): softmax-free attention whose
// decode state has a constant size.
#pragma once

#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "attention/primitives/linear_attention/linear_attention.h"

namespace linnet {

// The common options of these mechanisms. Params has members `scale`, `floor`, `normalizer`.
template <typename Params>
void describe_normalizer(ConfigDescription<Params>& d) {
  d.field("floor", &Params::floor, "epsilon of the denominator").above(0);
  d.choice("normalizer", &Params::normalizer,
           {{"clamp", Normalizer::clamp}, {"add", Normalizer::add}},
           "denominator max(x, floor) or x + floor");
}

// Products of q, times that factor, and k weight the values as they are.
inline LinearAttentionOptions sums_without_denominator(double query_scale) {
  LinearAttentionOptions attention;
  attention.feature_map = FeatureMap::identity;
  attention.query_scale = query_scale;
  attention.normalizer = Normalizer::none;
  return attention;
}

// Factors of re-weighting by position: one per token and head, for both or neither.
struct Proportions {
  Variable query, key;
};

// phi(q_i) S / D(phi(q_i) . z) in the form of `options`, continuing from and leaving state S
// [B,G,m,V], z [B,G,m]. With log_decay [B,T,G] (causal only) token t multiplies the state by
// exp(log_decay_t) first, with [B,T,G,m] each row of it by its own factor (not with proportions).
AttentionMixer::MixResult feature_map_mix(const LinearAttentionOptions& attention,
                                          const MixerOptions& options, const MixInput& input,
                                          const Proportions& proportions,
                                          const MixerContext& context, const MixerState& state,
                                          const Variable& log_decay = {});

// feature_map_mix() of the nodes of a tree, without proportions and decay; y is undefined where
// there is no walk of the primitive (linear_attention/tree.h).
Variable feature_map_tree(const LinearAttentionOptions& attention, const MixInput& input,
                          std::span<const MixerNode> nodes, const MixerState& state);

// Its cost with that many features per head, the bytes of the state that it leaves included.
MixerCost feature_map_cost(const MixerOptions& options, int64_t features, const MixerShape& shape);

// The denominator of a literal definition.
template <typename Number>
Number reference_denominator(Normalizer normalizer, double floor, Number x) {
  if (normalizer == Normalizer::none) return 1;
  const auto epsilon = static_cast<Number>(floor);
  return normalizer == Normalizer::add ? x + epsilon : std::max(x, epsilon);
}

// The feature map of a literal definition, element by element.
template <typename Number>
Number reference_feature(FeatureMap map, Number x) {
  if (map == FeatureMap::relu) return std::max(x, Number{0});
  if (map == FeatureMap::elu) return x > 0 ? x : std::expm1(x);
  return x > 0 ? x + 1 : std::exp(x);
}

// Mechanisms that are nothing but a feature map (linear, relu): parameters, mixer, definition.
template <FeatureMap kMap>
struct FeatureMapParams {
  std::string preset = "none";
  std::optional<double> scale = 1.0;  // null: 1/sqrt(K)
  double floor = 1e-6;
  Normalizer normalizer = Normalizer::clamp;

  // Each mechanism's own.
  static const std::vector<Preset>& presets();
  static void describe(ConfigDescription<FeatureMapParams>& d) {
    describe_preset(d, presets());
    describe_scale(d, "factor of q before the feature map; null: 1/sqrt(K)");
    d.field("floor", &FeatureMapParams::floor, "epsilon of the denominator").above(0);
    d.choice("normalizer", &FeatureMapParams::normalizer,
             {{"clamp", Normalizer::clamp}, {"add", Normalizer::add}, {"none", Normalizer::none}},
             "denominator max(x, floor) or x + floor; none: sums instead of means");
  }
};

template <FeatureMap kMap>
class FeatureMapMixer : public AttentionMixer {
 public:
  FeatureMapMixer(const FeatureMapParams<kMap>& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope) {
    attention_.feature_map = kMap;
    attention_.query_scale = params.scale.value_or(default_scale(options));
    attention_.normalizer = params.normalizer;
    attention_.epsilon = params.floor;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    return feature_map_mix(attention_, options(), input, {}, context, state);
  }

  TreeMix mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                   const MixerState& state) const override {
    const Variable y = feature_map_tree(attention_, input, nodes, state);
    if (!y.defined()) return AttentionMixer::mix_tree(input, nodes, state);
    return {y, committed(input, nodes, state, Commit::token_by_token)};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    return feature_map_cost(options(), options().head_width(), shape);
  }

 private:
  LinearAttentionOptions attention_;
};

template <FeatureMap kMap, typename Number>
std::vector<Number> feature_map_definition(const FeatureMapParams<kMap>& params,
                                           const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number a = 0;
        for (int64_t c = 0; c < s.K; ++c) {
          a += reference_feature(kMap, scale * s.query(i, h)[c]) *
               reference_feature(kMap, s.key(j, h)[c]);
        }
        return a;
      },
      [&](Number x) { return reference_denominator(params.normalizer, params.floor, x); });
}

// Fills in the fields that all of them have in common.
template <FeatureMap kMap>
Mechanism define_feature_map(Mechanism facts) {
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.grouped_queries = true;
  facts.traits.growth = std::string("T");
  facts.presets = FeatureMapParams<kMap>::presets();
  return define_mechanism<FeatureMapParams<kMap>, FeatureMapMixer<kMap>>(
      std::move(facts), [](const auto& params, const auto& sequence) {
        return feature_map_definition(params, sequence);
      });
}

}  // namespace linnet
