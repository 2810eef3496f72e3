// Grouped linear attention: parameters, mixer, literal definition, registry entry.
#include "attention/grouped_linear/grouped_linear.h"

#include "attention/define.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"linearized_llm", "the study's BERT and GPT-2 checkpoints: the defaults", {}},
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
      : AttentionMixer(options, scope),
        branches_(params.group, params.kappa, params.alpha == "learned", options, scope.own) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "grouped_linear");
    return branches_.mix(input, context, state);
  }
  MixerCost mix_cost(const MixerShape& shape) const override { return branches_.cost(shape); }

 private:
  GroupedBranches branches_;
};

}  // namespace

GroupedBranches::GroupedBranches(int64_t group, GroupKernel kernel, bool learned,
                                 const MixerOptions& options, const ParameterScope& own)
    : options_(options), local_(kernel, group, options), memory_(group, options) {
  if (learned && options.form != Form::cross) {
    alpha_ = own.parameter("alpha", {1}, init_constant(0));
  }
}

AttentionMixer::MixResult GroupedBranches::mix(const MixInput& input, const MixerContext& context,
                                               const MixerState& state) const {
  if (options_.form == Form::cross) return memory_.mix(input, context, state);
  AttentionMixer::MixResult local = local_.mix(input, context, state);
  AttentionMixer::MixResult earlier = memory_.mix(input, context, state);
  local.state.merge(earlier.state);
  const Variable weighted =
      alpha_.defined() ? multiply(repeat(alpha_, earlier.y.shape()), earlier.y) : earlier.y;
  return {add(local.y, weighted), std::move(local.state)};
}

MixerCost GroupedBranches::cost(const MixerShape& shape) const {
  MixerCost cost = memory_.cost(shape);
  if (options_.form == Form::cross) return cost;
  const MixerCost local = local_.cost(shape);
  cost.mixing += local.mixing;
  cost.bytes += local.bytes;
  if (alpha_.defined()) cost.bytes += static_cast<double>(size_of(shape.dtype));
  return cost;
}

template <typename Number>
std::vector<Number> grouped_definition(const ReferenceSequence<Number>& s, int64_t group,
                                       GroupKernel kernel, bool learned) {
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  const bool cross = s.form == Form::cross;
  if (!cross) add_group_definition(s, kernel, group, y);
  add_group_memory_definition(s, group, cross || !learned ? Number{1} : s.parameter("alpha")[0], y);
  return y;
}
template std::vector<float> grouped_definition(const ReferenceSequence<float>&, int64_t,
                                               GroupKernel, bool);
template std::vector<double> grouped_definition(const ReferenceSequence<double>&, int64_t,
                                                GroupKernel, bool);

void GroupedLinearParams::describe(ConfigDescription<GroupedLinearParams>& d) {
  describe_preset(d, kPresets);
  describe_group(d);
  describe_group_kernel(d);
  describe_alpha(d);
}

Mechanism grouped_linear_mechanism() {
  Mechanism facts;
  facts.name = "grouped_linear";
  facts.title = "Grouped linear attention";
  facts.equation =
      "y_i = sum_{g(j) = g(i)} kappa(q_i, k_j) v_j + alpha sum_{g(j) < g(i)} (q^_i . k^_j) v_j, "
      "g(i) = "
      "floor(i / C)\n"
      "(noncausal: the second sum over all j; cross: it alone, alpha = 1), kappa = relu(q^ . k^)^2";
  facts.complexity = "time B H T (C + V) (K + V), memory of decoding B H (K V + C (K + V))";
  facts.sources =
      "You et al. 2024, When Linear Attention Meets Autoregressive Decoding (Linearized LLM)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T (C + V)";
  facts.presets = kPresets;
  facts.cost_cases = {"{group: 128}"};
  facts.variants = {"{group: 7, kappa: softmax}", "{group: 5, kappa: flash, alpha: one}"};
  const auto no_alpha = [](const std::string& name, std::vector<double>& values) {
    if (name == "alpha") values[0] = 0;
  };
  facts.limits = {{"alpha = 0 leaves the groups alone",
                   "{group: 9}",
                   {Form::noncausal, Form::causal},
                   no_alpha,
                   [](const ReferenceSequence<double>& s) {
                     std::vector<double> y(s.v.size(), 0);
                     add_group_definition(s, GroupKernel::relu2_l2, 9, y);
                     return y;
                   }},
                  {"a group that holds everything has no earlier ones, whatever alpha",
                   "{group: 64, kappa: softmax}",
                   {Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }}};
  return define_mechanism<GroupedLinearParams, GroupedLinearMixer>(
      std::move(facts), [](const GroupedLinearParams& params, const auto& sequence) {
        return grouped_definition(sequence, params.group, params.kappa, params.alpha == "learned");
      });
}

}  // namespace linnet
