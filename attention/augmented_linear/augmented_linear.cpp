// Augmented linear attention: parameters, mixer, literal definition, registry entry.
#include "attention/augmented_linear/augmented_linear.h"

#include "attention/common/conv_branch.h"
#include "attention/common/grouped/grouped.h"
#include "attention/define.h"
#include "autograd/arithmetic.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"linearized_llm", "the study's BERT and GPT-2 checkpoints: the defaults", {}},
    {"t5",
     "the study's T5: filters of 9, values of length 1 and a relative bias in groups, whose output "
     "is divided by its length, both branches of them in cross-attention",
     {{"conv", "9"},
      {"values", "unit"},
      {"bias", "t5"},
      {"output_norm", "true"},
      {"cross", "paired"}}},
    {"text",
     "the paper's text, where the released code has relu(q^ . k^)^2",
     {{"kappa", "softmax"}}},
    {"flash",
     "groups and weights as FLASH has them, filters that are not zero at first",
     {{"group", "256"}, {"kappa", "flash"}, {"alpha", "one"}, {"conv_init", "uniform"}}}};

struct AugmentedLinearParams {
  std::string preset = "none";
  int64_t group = 64;
  GroupKernel kappa = GroupKernel::relu2_l2;
  std::string alpha = "learned";
  std::string values = "raw";
  std::string bias = "none";
  bool output_norm = false;
  std::string cross = "linear";
  int64_t conv = 63;
  std::string conv_init = "zero";

  static void describe(ConfigDescription<AugmentedLinearParams>& d) {
    describe_preset(d, kPresets);
    describe_group(d);
    describe_group_kernel(d);
    describe_alpha(d);
    describe_t5_options(d);
    describe_group_cross(d);
    d.field("conv", &AugmentedLinearParams::conv,
            "taps of a centred filter; causal: those of the token and before it, conv / 2 + 1")
        .range(1, 4095)
        .unit("tokens");
    describe_conv_init(d);
  }
  void validate(const ConfigNode& at) const { check_grouped(grouped_setting(*this), at); }
  MixerTraits traits(MixerTraits traits) const {
    traits.couples_heads = output_norm;
    return traits;
  }
};

class AugmentedLinearMixer : public AttentionMixer {
 public:
  AugmentedLinearMixer(const AugmentedLinearParams& params, const MixerOptions& options,
                       const MixerScope& scope)
      : AttentionMixer(options, scope), grouped_(grouped_setting(params), options, scope) {
    if (options.form != Form::cross)
      conv_.emplace(params.conv, params.conv_init, options, scope.own);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "augmented_linear");
    MixResult result = grouped_.mix(input, context, state);
    if (!conv_) return result;
    MixResult convolved = conv_->mix(input.v, context, state);
    result.y = add(result.y, convolved.y);
    result.state.merge(convolved.state);
    return result;
  }

  TreeMix mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                   const MixerState& state) const override {
    if (on_cuda(input.q.value())) return AttentionMixer::mix_tree(input, nodes, state);
    TreeMix mixed = grouped_.tree(input, nodes, state);
    TreeMix convolved = conv_->tree(input.v, nodes, state);
    const Variable y = add(mixed.y, convolved.y);
    return with_states(y, {std::move(mixed), std::move(convolved)});
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = grouped_.cost(shape);
    if (!conv_) return cost;
    const MixerCost convolved = conv_->cost(shape);
    cost.mixing += convolved.mixing;
    cost.bytes += convolved.bytes;
    return cost;
  }

 private:
  GroupedBranches grouped_;
  std::optional<ConvBranch> conv_;
};

template <typename Number>
std::vector<Number> definition(const AugmentedLinearParams& params,
                               const ReferenceSequence<Number>& s) {
  std::vector<Number> y = grouped_definition(s, grouped_setting(params));
  if (s.form != Form::cross) add_conv_definition(s, params.conv, "conv", y);
  return y;
}

}  // namespace

Mechanism augmented_linear_mechanism() {
  Mechanism facts;
  facts.name = "augmented_linear";
  facts.title = "Augmented linear attention: grouped, with a convolution of the values";
  facts.equation =
      "y_i = sum_{g(j) = g(i)} kappa(q_i, k_j) v_j + alpha sum_{g(j) < g(i)} (q^_i . k^_j) v_j\n"
      "      + sum_d conv[h, d] v_{i-d},  d = 0 ... p (noncausal: -p ... p; cross: the second sum "
      "alone)";
  facts.complexity =
      "time B H T ((C + V) (K + V) + p V), memory of decoding B H (K V + C (K + V) + p V)";
  facts.sources =
      "You et al. 2024, When Linear Attention Meets Autoregressive Decoding (Linearized LLM)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T (C + V + p)";
  facts.presets = kPresets;
  facts.form_options = {{"cross", {Form::cross}}};
  facts.cost_cases = {"{group: 128}"};
  facts.variants = {"{group: 7, conv: 5, kappa: softmax, cross: paired}",
                    "{group: 5, conv: 4, kappa: flash, alpha: one}", "{group: 6, preset: t5}"};
  facts.limits = {{"alpha = 0 and taps of 0 leave the groups alone",
                   "{group: 9, conv: 5, cross: paired}",
                   {Form::noncausal, Form::causal, Form::cross},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "alpha" || name == "conv") {
                       std::fill(values.begin(), values.end(), 0);
                     }
                   },
                   [](const ReferenceSequence<double>& s) {
                     std::vector<double> y(static_cast<size_t>(s.T * s.H * s.V), 0);
                     add_group_definition(s, GroupKernel::relu2_l2, 9, y);
                     return y;
                   }}};
  return define_mechanism<AugmentedLinearParams, AugmentedLinearMixer>(
      std::move(facts), [](const AugmentedLinearParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
