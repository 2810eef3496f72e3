// FLASH-Global: parameters, mixer, literal definition, registry entry.
#include "attention/flash_global/flash_global.h"

#include "attention/define.h"

namespace linnet {
namespace {

class FlashGlobalMixer : public AttentionMixer {
 public:
  FlashGlobalMixer(const FlashGlobalParams& params, const MixerOptions& options,
                   const MixerScope& scope)
      : AttentionMixer(options, scope), group_(params.group), memory_(params.group, options) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "flash_global");
    MixInput units = input;
    units.q = unit_vectors(input.q);
    if (input.k.defined()) units.k = unit_vectors(input.k);
    MixResult result = memory_.mix(units, context, state);
    if (options().form == Form::causal) {
      result.state.merge(carry_keys(units, context, state, group_ - 1));
    }
    return result;
  }
  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = memory_.cost(shape);
    if (options().form == Form::causal) {
      cost.bytes += carried_keys_bytes(options(), group_ - 1, shape);
    }
    return cost;
  }

 private:
  int64_t group_;
  GroupMemoryBranch memory_;
};

template <typename Number>
std::vector<Number> definition(const FlashGlobalParams& params,
                               const ReferenceSequence<Number>& s) {
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  add_group_memory_definition(s, params.group, Number{1}, y);
  return y;
}

}  // namespace

void FlashGlobalParams::describe(ConfigDescription<FlashGlobalParams>& d) {
  describe_group(d);
}

Mechanism flash_global_mechanism() {
  Mechanism facts;
  facts.name = "flash_global";
  facts.title = "FLASH-Global: linear attention over earlier groups, on a host's heads";
  facts.equation =
      "causal: y_i = sum_j (q^_i . k^_j) v_j over the groups of C tokens before the group of i\n"
      "noncausal and cross: over all keys; q^, k^: vectors of length 1";
  facts.complexity = "time 2 B H T K V, memory of decoding B H (K V + C (K + V))";
  facts.sources =
      "Hua et al. 2022, FLASH (global); on hosts: You et al. 2024, When Linear Attention Meets "
      "Autoregressive Decoding";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = std::string("T");
  facts.variants = {"{group: 7}", "{group: 1}"};
  facts.limits = {{"nothing is before the first group",
                   "{}",
                   {Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return std::vector<double>(static_cast<size_t>(s.T * s.H * s.V), 0);
                   }}};
  return define_mechanism<FlashGlobalParams, FlashGlobalMixer>(
      std::move(facts), [](const FlashGlobalParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
