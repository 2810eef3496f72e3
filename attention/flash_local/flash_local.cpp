// FLASH-Local: parameters, mixer, literal definition, registry entry.
#include "attention/flash_local/flash_local.h"

#include "attention/define.h"

namespace linnet {
namespace {

class FlashLocalMixer : public AttentionMixer {
 public:
  FlashLocalMixer(const FlashLocalParams& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope), local_(params.kappa, params.group, options) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "flash_local");
    return local_.mix(input, context, state);
  }
  MixerCost mix_cost(const MixerShape& shape) const override { return local_.cost(shape); }

 private:
  GroupBranch local_;
};

template <typename Number>
std::vector<Number> definition(const FlashLocalParams& params, const ReferenceSequence<Number>& s) {
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  add_group_definition(s, params.kappa, params.group, y);
  return y;
}

}  // namespace

void FlashLocalParams::describe(ConfigDescription<FlashLocalParams>& d) {
  describe_group(d);
  describe_group_kernel(d);
}

Mechanism flash_local_mechanism() {
  Mechanism facts;
  facts.name = "flash_local";
  facts.title = "FLASH-Local: attention inside groups, on a host's heads";
  facts.equation =
      "y_i = sum_j kappa(q_i, k_j) v_j over the group of C tokens that holds i (causal: j <= i),\n"
      "kappa = relu(q^ . k^)^2 of vectors of length 1 (or softmax, or relu(q . k / C)^2)";
  facts.complexity = "time B H T C (K + V), memory of decoding B H C (K + V)";
  facts.sources =
      "Hua et al. 2022, FLASH (local); on hosts: You et al. 2024, When Linear Attention Meets "
      "Autoregressive Decoding";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T C";
  facts.cost_cases = {"{group: 256}"};
  facts.variants = {"{group: 7}", "{group: 6, kappa: flash}"};
  facts.limits = {{"softmax in a group that holds everything is soft-max attention",
                   "{kappa: softmax}",
                   {Form::noncausal, Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }}};
  return define_mechanism<FlashLocalParams, FlashLocalMixer>(
      std::move(facts), [](const FlashLocalParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
