// FLASH-Local: parameters, mixer, literal definition, registry entry.
#include "attention/flash_local/flash_local.h"

#include "attention/define.h"
#include "attention/flash/kind.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"paper",
     "the gated unit with rotary positions on all channels and a bias for each distance, as in its "
     "pseudo-code",
     {{"kind", "gau"}, {"rope", "whole"}, {"bias", "toeplitz"}}},
    {"lucidrains",
     "the gated unit of FLASH-pytorch: 32 buckets of distances",
     {{"kind", "gau"}, {"bias", "t5"}}},
    {"linearized_llm",
     "on the hosts' heads, groups of 64, as in the released weights",
     {{"kind", "heads"}, {"group", "64"}, {"kappa", "relu2_l2"}}},
    {"t5",
     "the same on the heads of T5: values of length 1, a relative bias, outputs divided by their "
     "length",
     {{"kind", "heads"},
      {"group", "64"},
      {"values", "unit"},
      {"relative_bias", "true"},
      {"output_norm", "true"}}}};

class FlashLocalMixer : public AttentionMixer {
 public:
  FlashLocalMixer(const FlashLocalParams& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope), local_(params.heads(), options, scope) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "flash_local");
    return local_.mix(input, context, state);
  }
  MixerCost mix_cost(const MixerShape& shape) const override { return local_.cost(shape); }

 private:
  GroupedBranches local_;
};

template <typename Number>
std::vector<Number> definition(const FlashLocalParams& params, const ReferenceSequence<Number>& s) {
  if (const std::optional<FlashParams> unit = params.unit()) return flash_definition(*unit, s);
  return grouped_definition(s, params.heads());
}

}  // namespace

void FlashLocalParams::describe(ConfigDescription<FlashLocalParams>& d) {
  describe_kind(d);
  describe_group_kernel(d);
  describe_group_values(d);
  d.field("relative_bias", &FlashLocalParams::relative_bias,
          "on heads: bias added to weights after kappa, one value per head and bucket of distances "
          "(32 buckets), one table for all layers");
  describe_output_norm(d);
  describe_gated_maps(d, kPresets);
  describe_gated_weights(d);
}

void FlashLocalParams::validate(const ConfigNode& at) const {
  const ConfigNode defaults = to_config_node(FlashLocalParams{});
  if (kind == "gau") {
    refuse_options(at, defaults, kind, {"kappa", "values", "relative_bias", "output_norm"});
    return check(at);
  }
  check_grouped(heads(), at, "relative_bias");
  refuse_options(at, defaults, kind,
                 {"expansion", "key_width", "rope", "rope_width", "token_shift", "weights", "bias",
                  "dropout"});
}

MixerTraits FlashLocalParams::traits(MixerTraits traits) const {
  traits.couples_heads = output_norm;
  return traits;
}

GroupedSetting FlashLocalParams::heads() const {
  return {.group = group.value_or(kHostGroup),
          .kernel = kappa,
          .unit_values = values == "unit",
          .relative_bias = relative_bias,
          .output_norm = output_norm,
          .earlier = false};
}

std::optional<FlashParams> FlashLocalParams::unit() const {
  if (kind != "gau") return {};
  FlashParams params;
  static_cast<GatedUnitOptions&>(params) = *this;
  params.group = group.value_or(kUnitGroup);
  params.parts = "local";
  return params;
}

Mechanism flash_local_mechanism() {
  Mechanism facts;
  facts.name = "flash_local";
  facts.title = "FLASH-Local: attention inside groups, on a host's heads or as a gated unit";
  facts.equation =
      "y_i = sum_j kappa(q_i, k_j) v_j over the group of C tokens that holds i (causal: j <= i),\n"
      "kappa = relu(q^ . k^)^2 of vectors of length 1 (or softmax, or relu(q . k / C)^2)\n"
      "kind: gau: y_i = U_i sum_j relu(q_i . k_j / C + b_{j-i})^2 V_j with U, V, Z as flash; W_o y";
  facts.complexity =
      "time B H T C (K + V), memory of decoding B H C (K + V); gau: s, e for H K, H V";
  facts.sources =
      "Hua et al. 2022, FLASH (local); on hosts: You et al. 2024, When Linear Attention Meets "
      "Autoregressive Decoding";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T C";
  facts.cost_cases = {"{group: 256}"};
  facts.presets = kPresets;
  facts.variants = {
      "{group: 7}",
      "{group: 6, kappa: flash, values: unit, relative_bias: true, output_norm: true}",
      "{group: 7, key_width: 8, preset: paper}"};
  facts.limits = {{"softmax in a group that holds everything is softmax attention",
                   "{kappa: softmax}",
                   {Form::noncausal, Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }}};
  return or_flash_unit<FlashLocalParams>(define_mechanism<FlashLocalParams, FlashLocalMixer>(
      std::move(facts), [](const FlashLocalParams& params, const auto& sequence) {
        return definition(params, sequence);
      }));
}

}  // namespace linnet
