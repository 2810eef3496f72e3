// A plugin that is wrong on purpose: it says that it is causal, but every token sees later ones.
#include "attention/linear/linear.h"
#include "attention/plugin.h"
#include "attention/registry.h"

namespace {

using namespace linnet;

class PeekingMixer : public AttentionMixer {
 public:
  PeekingMixer(const LinearParams&, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope) {
    attention_.feature_map = FeatureMap::elu1;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    MixerOptions all_tokens = options();
    all_tokens.form = Form::noncausal;
    return feature_map_mix(attention_, all_tokens, input, {}, context, state);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    return feature_map_cost(options(), options().head_width(), shape);
  }

 private:
  LinearAttentionOptions attention_;
};

Mechanism peeking_linear() {
  Mechanism facts;
  facts.name = "peeking_linear";
  facts.title = facts.equation = facts.complexity = "Linear attention that sees later tokens";
  facts.sources = "nobody's";
  facts.traits.causal = facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T";
  return define_mechanism<LinearParams, PeekingMixer>(
      std::move(facts),
      [](const LinearParams& params, const auto& s) { return feature_map_definition(params, s); });
}

}  // namespace

LINNET_PLUGIN() {
  register_mechanism(peeking_linear());
}
