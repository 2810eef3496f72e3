// FLASH-Global: parameters, mixer, literal definition, registry entry.
#include "attention/flash_global/flash_global.h"

#include "attention/define.h"
#include "attention/flash/kind.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"paper",
     "the gated unit with rotary positions on all channels and the mean over earlier groups, as in "
     "its pseudo-code",
     {{"kind", "gau"}, {"rope", "whole"}, {"mean", "true"}}},
    {"lucidrains",
     "the gated unit of FLASH-pytorch: the sum over earlier groups",
     {{"kind", "gau"}, {"mean", "false"}}},
    {"linearized_llm",
     "on the hosts' heads, the sum over groups of 64, as in the released code",
     {{"kind", "heads"}, {"group", "64"}, {"mean", "false"}}},
    {"t5",
     "the same on the heads of T5: values of length 1, outputs divided by their length",
     {{"kind", "heads"},
      {"group", "64"},
      {"mean", "false"},
      {"values", "unit"},
      {"output_norm", "true"}}}};

class FlashGlobalMixer : public AttentionMixer {
 public:
  FlashGlobalMixer(const FlashGlobalParams& params, const MixerOptions& options,
                   const MixerScope& scope)
      : AttentionMixer(options, scope), memory_(params.heads(), options, scope) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "flash_global");
    return memory_.mix(input, context, state);
  }
  MixerCost mix_cost(const MixerShape& shape) const override { return memory_.cost(shape); }

 private:
  GroupedBranches memory_;
};

template <typename Number>
std::vector<Number> definition(const FlashGlobalParams& params,
                               const ReferenceSequence<Number>& s) {
  if (const std::optional<FlashParams> unit = params.unit()) return flash_definition(*unit, s);
  return grouped_definition(s, params.heads());
}

}  // namespace

void FlashGlobalParams::describe(ConfigDescription<FlashGlobalParams>& d) {
  describe_kind(d);
  d.field("mean", &FlashGlobalParams::mean,
          "causal: divide the sum over earlier groups by their number");
  describe_group_values(d);
  describe_output_norm(d);
  describe_gated_maps(d, kPresets);
  describe_gated_length(d);
}

void FlashGlobalParams::validate(const ConfigNode& at) const {
  const ConfigNode defaults = to_config_node(FlashGlobalParams{});
  if (kind == "gau") {
    refuse_options(at, defaults, kind, {"values", "output_norm"});
    return check(at);
  }
  refuse_options(at, defaults, kind,
                 {"expansion", "key_width", "rope", "rope_width", "token_shift", "length"});
}

MixerTraits FlashGlobalParams::traits(MixerTraits traits) const {
  traits.couples_heads = output_norm;
  const std::optional<FlashParams> gated = unit();
  if (!gated) return traits;
  traits.cross = false;
  return gated->traits(traits);
}

GroupedSetting FlashGlobalParams::heads() const {
  return {.group = group.value_or(kHostGroup),
          .unit_values = values == "unit",
          .output_norm = output_norm,
          .inside = false,
          .mean = mean};
}

std::optional<FlashParams> FlashGlobalParams::unit() const {
  if (kind != "gau") return {};
  FlashParams params;
  static_cast<GatedUnitOptions&>(params) = *this;
  params.group = group.value_or(kUnitGroup);
  params.mean = mean;
  params.parts = "global";
  return params;
}

Mechanism flash_global_mechanism() {
  Mechanism facts;
  facts.name = "flash_global";
  facts.title =
      "FLASH-Global: linear attention over earlier groups, on a host's heads or as a gated unit";
  facts.equation =
      "causal: y_i = sum_j (q^_i . k^_j) v_j over the groups of C tokens before the group of i\n"
      "noncausal and cross: over all keys; q^, k^: vectors of length 1\n"
      "kind: gau: y_i = U_i sum_j q'_i . k'_j V_j / C (noncausal: / N) with U, V, Z as flash; W_o "
      "y";
  facts.complexity = "time 2 B H T K V, memory of decoding 2 B H K V; gau: s e for H K V";
  facts.sources =
      "Hua et al. 2022, FLASH (global); on hosts: You et al. 2024, When Linear Attention Meets "
      "Autoregressive Decoding";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = std::string("T");
  facts.presets = kPresets;
  facts.variants = {"{group: 7}", "{group: 1, mean: true, values: unit, output_norm: true}",
                    "{group: 7, key_width: 8, preset: paper}"};
  facts.limits = {{"nothing is before the first group",
                   "{}",
                   {Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return std::vector<double>(static_cast<size_t>(s.T * s.H * s.V), 0);
                   }}};
  return or_flash_unit<FlashGlobalParams>(define_mechanism<FlashGlobalParams, FlashGlobalMixer>(
      std::move(facts), [](const FlashGlobalParams& params, const auto& sequence) {
        return definition(params, sequence);
      }));
}

}  // namespace linnet
