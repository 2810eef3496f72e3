// Grouped linear attention: parameters, mixer, literal definition, registry entry.
#include "attention/grouped_linear/grouped_linear.h"

#include "attention/define.h"
#include "attention/rfa/wave_features.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"linearized_llm", "the study's BERT and GPT-2 checkpoints: the defaults", {}},
    {"t5",
     "the study's T5: values of length 1, a relative bias, outputs divided by their length",
     {{"values", "unit"}, {"bias", "t5"}, {"output_norm", "true"}}},
    {"loc_gro", "ablation: both branches with factor 1", {{"alpha", "one"}}},
    {"text",
     "the paper's text, where the released code has relu(q^ . k^)^2",
     {{"kappa", "softmax"}}},
    {"flash",
     "groups and weights as FLASH has them",
     {{"group", "256"}, {"kappa", "flash"}, {"alpha", "one"}}}};

// What is added to the length that outputs are divided by.
constexpr double kOutputFloor = 1e-4;

// y / (kOutputFloor + |y|) with the length over all heads of a token.
Variable divided_by_length(const Variable& y) {
  const int64_t B = y.size(0), T = y.size(1), width = y.size(2) * y.size(3);
  const DType dtype = sum_dtype(y.dtype());
  const Variable ones(Tensor::full({1, width}, 1, dtype, y.value().device()));
  // scaled_directions adds kLengthFloor.
  const Variable rows =
      scale(reshape(cast(y, dtype), {B, T, 1, width}), kLengthFloor / kOutputFloor);
  return reshape(cast(scaled_directions(rows, ones, {}), y.dtype()), y.shape());
}

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
  MixerCost mix_cost(const MixerShape& shape) const override { return branches_.cost(shape); }

 private:
  GroupedBranches branches_;
};

}  // namespace

void check_grouped(const GroupedSetting& setting, const ConfigNode& at, const std::string& bias) {
  if (setting.relative_bias && setting.kernel == GroupKernel::softmax) {
    throw located_error(at.location_of(bias), bias,
                        ": the relative bias is added to weights that nothing normalises; with "
                        "kappa: softmax remove it");
  }
}

GroupedBranches::GroupedBranches(const GroupedSetting& setting, const MixerOptions& options,
                                 const MixerScope& scope)
    : setting_(setting),
      options_(options),
      local_(setting.kernel, setting.group, options),
      memory_(setting.group, options, setting.mean) {
  if (!inside()) return;
  if (setting.learned_alpha && setting.earlier)
    alpha_ = scope.own.parameter("alpha", {1}, init_constant(0));
  if (setting.relative_bias) relative_.emplace(setting.group, options, scope.tied);
}

AttentionMixer::MixResult GroupedBranches::mix(const MixInput& input, const MixerContext& context,
                                               const MixerState& state) const {
  MixInput used = input;
  if (setting_.unit_values && input.v.defined()) {
    used.v =
        scale(unit_vectors(input.v), 1 / std::sqrt(static_cast<double>(options_.head_width())));
  }
  AttentionMixer::MixResult result = sum_of_branches(used, context, state);
  if (setting_.output_norm) result.y = divided_by_length(result.y);
  return result;
}

AttentionMixer::MixResult GroupedBranches::sum_of_branches(const MixInput& input,
                                                           const MixerContext& context,
                                                           const MixerState& state) const {
  if (!inside()) return memory_.mix(input, context, state);
  AttentionMixer::MixResult local = local_.mix(input, context, state);
  if (relative_) local.y = add(local.y, relative_->mix(input.v, context, state));
  if (!earlier()) return local;
  AttentionMixer::MixResult before = memory_.mix(input, context, state);
  local.state.merge(before.state);
  const Variable weighted =
      alpha_.defined() ? multiply(repeat(alpha_, before.y.shape()), before.y) : before.y;
  return {add(local.y, weighted), std::move(local.state)};
}

MixerCost GroupedBranches::cost(const MixerShape& shape) const {
  MixerCost cost;
  const auto add_cost = [&](const MixerCost& part) {
    cost.mixing += part.mixing;
    cost.bytes += part.bytes;
  };
  if (earlier()) add_cost(memory_.cost(shape));
  if (inside()) add_cost(local_.cost(shape));
  if (relative_) add_cost(relative_->cost(shape));
  if (alpha_.defined()) cost.bytes += static_cast<double>(size_of(shape.dtype));
  return cost;
}

template <typename Number>
std::vector<Number> grouped_definition(const ReferenceSequence<Number>& s,
                                       const GroupedSetting& setting) {
  ReferenceSequence<Number> used = s;
  for (auto at = used.v.begin(); setting.unit_values && at != used.v.end(); at += s.V) {
    const Number length =
        std::max(std::sqrt(dot_product(&*at, &*at, s.V)), static_cast<Number>(1e-12));
    std::for_each(at, at + s.V, [&](Number& value) { value = s.stored(value / length); });
  }
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  const bool cross = s.form == Form::cross, inside = setting.inside && !cross;
  if (inside) add_group_definition(used, setting.kernel, setting.group, y);
  if (inside && setting.relative_bias) add_relative_definition(used, setting.group, y);
  const bool learned = setting.learned_alpha && inside;
  const Number factor = learned ? s.parameter("alpha")[0] : Number{1};
  if (setting.earlier || cross) {
    add_group_memory_definition(used, setting.group, factor, y, setting.mean);
  }
  const int64_t width = s.H * s.V;
  for (auto at = y.begin(); setting.output_norm && at != y.end(); at += width) {
    std::for_each(at, at + width, [&](Number& value) { value = s.stored(value); });
    const Number length = std::sqrt(dot_product(&*at, &*at, width));
    std::for_each(at, at + width,
                  [&](Number& value) { value /= static_cast<Number>(kOutputFloor) + length; });
  }
  return y;
}
template std::vector<float> grouped_definition(const ReferenceSequence<float>&,
                                               const GroupedSetting&);
template std::vector<double> grouped_definition(const ReferenceSequence<double>&,
                                                const GroupedSetting&);

void GroupedLinearParams::describe(ConfigDescription<GroupedLinearParams>& d) {
  describe_preset(d, kPresets);
  describe_group(d);
  describe_group_kernel(d);
  describe_alpha(d);
  describe_t5_options(d);
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
      "(noncausal: the second sum over all j; cross: it alone, alpha = 1), kappa = relu(q^ . k^)^2";
  facts.complexity = "time B H T (C + V) (K + V), memory of decoding B H (K V + C (K + V))";
  facts.sources =
      "You et al. 2024, When Linear Attention Meets Autoregressive Decoding (Linearized LLM)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T (C + V)";
  facts.presets = kPresets;
  facts.cost_cases = {"{group: 128}"};
  facts.variants = {"{group: 7, kappa: softmax}", "{group: 5, kappa: flash, alpha: one}",
                    "{group: 6, preset: t5}"};
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
        return grouped_definition(sequence, grouped_setting(params));
      });
}

}  // namespace linnet
