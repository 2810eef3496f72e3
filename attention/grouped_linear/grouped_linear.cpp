// Grouped linear attention: parameters, mixer, literal definition, registry entry.
#include "attention/grouped_linear/grouped_linear.h"

#include "attention/define.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"linearized_llm", "the study's BERT and GPT-2 checkpoints: the defaults", {}},
    {"t5",
     "the study's T5: values of length 1, a relative bias, outputs divided by their length, both "
     "branches in cross-attention",
     {{"values", "unit"}, {"bias", "t5"}, {"output_norm", "true"}, {"cross", "paired"}}},
    {"loc_gro", "ablation: both branches with factor 1", {{"alpha", "one"}}},
    {"text",
     "the paper's text, where the released code has relu(q^ . k^)^2",
     {{"kappa", "softmax"}}},
    {"flash",
     "groups and weights as FLASH has them",
     {{"group", "256"}, {"kappa", "flash"}, {"alpha", "one"}}}};

class GroupedLinearMixer : public AttentionMixer {
 public:
  GroupedLinearMixer(const GroupedLinearParams& params, const MixerOptions& options,
                     const MixerScope& scope)
      : AttentionMixer(options, scope), branches_(grouped_setting(params), options, scope) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "grouped_linear");
    return branches_.mix(input, context, state);
  }
  TreeMix mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                   const MixerState& state) const override {
    return on_cuda(input.q.value()) ? AttentionMixer::mix_tree(input, nodes, state)
                                    : branches_.tree(input, nodes, state);
  }

  MixerCost mix_cost(const MixerShape& shape) const override { return branches_.cost(shape); }

 private:
  GroupedBranches branches_;
};

}  // namespace

void GroupedLinearParams::describe(ConfigDescription<GroupedLinearParams>& d) {
  describe_preset(d, kPresets);
  describe_group(d);
  describe_group_kernel(d);
  describe_alpha(d);
  describe_t5_options(d);
  describe_group_cross(d);
}

void GroupedLinearParams::validate(const ConfigNode& at) const {
  check_grouped(grouped_setting(*this), at);
}

MixerTraits GroupedLinearParams::traits(MixerTraits traits) const {
  traits.couples_heads = output_norm;
  return traits;
}

Mechanism grouped_linear_mechanism() {
  Mechanism facts;
  facts.name = "grouped_linear";
  facts.title = "Grouped linear attention";
  facts.equation =
      "y_i = sum_{g(j) = g(i)} kappa(q_i, k_j) v_j + alpha sum_{g(j) < g(i)} (q^_i . k^_j) v_j, "
      "g(i) = "
      "floor(i / C)\n"
      "(noncausal: the second sum over all j; cross: it alone, alpha = 1, or both), kappa = "
      "relu(q^ . k^)^2";
  facts.complexity = "time B H T (C + V) (K + V), memory of decoding B H (K V + C (K + V))";
  facts.sources =
      "You et al. 2024, When Linear Attention Meets Autoregressive Decoding (Linearized LLM)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T (C + V)";
  facts.presets = kPresets;
  facts.form_options = {{"cross", {Form::cross}}};
  facts.cost_cases = {"{group: 128}"};
  facts.variants = {"{group: 7, kappa: softmax, cross: paired}",
                    "{group: 5, kappa: flash, alpha: one}", "{group: 6, preset: t5}"};
  const auto no_alpha = [](const std::string& name, std::vector<double>& values) {
    if (name == "alpha") values[0] = 0;
  };
  facts.limits = {
      {"alpha = 0 leaves the groups alone",
       "{group: 9, cross: paired}",
       {Form::noncausal, Form::causal, Form::cross},
       no_alpha,
       [](const ReferenceSequence<double>& s) {
         std::vector<double> y(static_cast<size_t>(s.T * s.H * s.V), 0);
         add_group_definition(s, GroupKernel::relu2_l2, 9, y);
         return y;
       }},
      {"a group that holds both sequences gives softmax attention, with alpha = 0",
       "{group: 64, kappa: softmax, cross: paired}",
       {Form::cross},
       no_alpha,
       [](const ReferenceSequence<double>& s) {
         return softmax_attention_reference(
             s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
             [](int64_t, int64_t, int64_t) { return 0.0; });
       }},
      {"a group that holds everything has no earlier ones, whatever alpha",
       "{group: 64, kappa: softmax}",
       {Form::causal},
       {},
       [](const ReferenceSequence<double>& s) {
         return softmax_attention_reference(
             s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
             [](int64_t, int64_t, int64_t) { return 0.0; });
       }}};
  return define_mechanism<GroupedLinearParams, GroupedLinearMixer>(
      std::move(facts), [](const GroupedLinearParams& params, const auto& sequence) {
        return grouped_definition(sequence, grouped_setting(params));
      });
}

}  // namespace linnet
