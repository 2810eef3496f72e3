// Local attention: parameters, mixer, literal definition, registry entry.
#include "attention/local/local.h"

#include "attention/common/mixer_support.h"
#include "attention/common/tree_support.h"
#include "attention/define.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lavo",
     "LAVO's baseline: w keys back (causal), w on each side (noncausal)",
     {{"pattern", "band"}, {"window", "16"}}},
    {"survey",
     "blocks of 128 without overlap; the code that ran has no 1/sqrt(K)",
     {{"pattern", "block"}, {"window", "128"}, {"scale", "1"}}}};

class LocalMixer : public AttentionMixer {
 public:
  LocalMixer(const LocalParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "local");
    BlockAttentionContext block = block_context(options(), context);
    block.options = pattern();
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    if (options().form == Form::causal) {
      return causal_with_cache(input, context, state, block, params_.window - 1);
    }
    return {block_attention({input.q, input.k, input.v, {}, {}, {}}, block), {}};
  }

  TreeMix mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                   const MixerState& state) const override {
    BlockAttentionContext block = block_context(options(), nodes[0].context);
    block.options = pattern();
    return tree_with_cache(input, nodes, state, block, params_.window - 1);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    return block_attention_cost(options(), pattern(), params_.window - 1, shape);
  }

 private:
  BlockAttentionOptions pattern() const {
    const Form form = options().form;
    BlockAttentionOptions pattern;
    pattern.pattern = params_.pattern == "block" ? BlockPattern::blocks : BlockPattern::band;
    pattern.causal = form == Form::causal;
    pattern.left = params_.left(form);
    pattern.right = params_.right(form);
    pattern.block = params_.window;
    pattern.scale = params_.scale.value_or(default_scale(options()));
    return pattern;
  }

  LocalParams params_;
};

template <typename Number>
std::vector<Number> definition(const LocalParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  return softmax_attention_reference(
      s, scale,
      [&](int64_t i, int64_t j) {
        if (params.pattern == "block") return i / params.window == j / params.window;
        return j >= i - params.left(s.form) && j <= i + params.right(s.form);
      },
      [](int64_t, int64_t, int64_t) { return Number{0}; });
}

}  // namespace

void LocalParams::describe(ConfigDescription<LocalParams>& d) {
  describe_preset(d, kPresets);
  d.choice("pattern", &LocalParams::pattern, {"band", "block"},
           "keys around the token, or the block of `window` tokens that holds it");
  d.field("window", &LocalParams::window, "tokens w; a causal band includes the token itself")
      .range(1, 1 << 20)
      .unit("tokens");
  d.choice("sides", &LocalParams::sides, {"two_sided", "centred"},
           "noncausal band: w keys on each side (2 w + 1 in all), or w keys around the token");
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  describe_dropout(d);
}

int64_t LocalParams::left(Form form) const {
  if (form == Form::causal) return window - 1;
  return sides == "two_sided" ? window : window / 2;
}
int64_t LocalParams::right(Form form) const {
  if (form == Form::causal) return 0;
  return sides == "two_sided" ? window : window - 1 - window / 2;
}

Mechanism local_mechanism() {
  Mechanism facts;
  facts.name = "local";
  facts.title = "Local softmax attention";
  facts.equation =
      "y_i = sum_j softmax_j(scale q_i . k_j) v_j over i-w < j <= i (causal), |i-j| <= w\n"
      "(noncausal), or the block of w tokens that holds i";
  facts.complexity = "time 2 B H T w (K + V), memory of decoding B H w (K + V)";
  facts.sources = "CAB (Zhang et al. 2022), local attention; a survey's block-local attention";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.grouped_queries = true;
  facts.traits.growth = "T w";
  facts.presets = kPresets;
  facts.cost_cases = {"{window: 256}", "{pattern: block, window: 256}",
                      "{window: 256, sides: centred}"};
  facts.variants = {"{window: 1}", "{pattern: block, window: 7, scale: 1}",
                    "{window: 6, sides: centred}"};
  facts.limits = {{"a window that reaches everything gives softmax attention",
                   "{window: 64}",
                   {Form::noncausal, Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }},
                  {"a causal window of one token returns its value",
                   "{window: 1}",
                   {Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) { return s.v; }}};
  return define_mechanism<LocalParams, LocalMixer>(
      std::move(facts),
      [](const LocalParams& params, const auto& sequence) { return definition(params, sequence); });
}

}  // namespace linnet
