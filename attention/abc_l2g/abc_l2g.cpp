// ABC, local to global: parameters, mixer, literal definition, registry entry.
#include "attention/abc_l2g/abc_l2g.h"

#include "attention/common/abc/slot_choices.h"
#include "attention/common/slot_support.h"
#include "attention/define.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"abc", "as many slots as the paper's larger language models", {{"slots", "64"}}}};

class AbcL2gMixer : public AttentionMixer {
 public:
  AbcL2gMixer(const AbcL2gParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const SlotMixing mixing =
        given_slot_mixing(params_, false, options(), context, draw_key(context));
    return slot_mix(mixing, options(), input, context, state, [&] {
      const Tensor slots = global_token_slots(written_positions(options(), input, context),
                                              params_.stride, params_.slots);
      return Variable(one_hot_controls(slots, {}, options().heads, params_.slots, input.k.dtype()));
    });
  }
  MixerCost mix_cost(const MixerShape& shape) const override {
    return slot_mix_cost(options(), params_.slots, shape);
  }

 private:
  AbcL2gParams params_;
};

template <typename Number>
std::vector<Number> definition(const AbcL2gParams& params, const ReferenceSequence<Number>& s) {
  SlotDefinition d = slot_definition_of(params, s);
  d.divisor = SlotDefinition::Divisor::none;
  return slot_definition(s, d, [&](int64_t j, int64_t, int64_t l) {
    const int64_t position = s.form == Form::cross ? j : s.positions[static_cast<size_t>(j)];
    return position == l * params.stride ? Number{1} : Number{0};
  });
}

std::vector<double> softmax_of_even_tokens(const ReferenceSequence<double>& s) {
  return softmax_attention_reference(
      s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t j) { return j % 2 == 0; },
      [](int64_t, int64_t, int64_t) { return 0.0; });
}

}  // namespace

void AbcL2gParams::describe(ConfigDescription<AbcL2gParams>& d) {
  describe_preset(d, kPresets);
  d.field("slots", &AbcL2gParams::slots, "memory slots N: global tokens").range(1, 4096);
  d.field("stride", &AbcL2gParams::stride,
          "every stride-th position, from the first on, is a global token until N are found")
      .range(1, 1 << 20)
      .unit("tokens");
  describe_slot_read(d, "slots not yet written");
}

Mechanism abc_l2g_mechanism() {
  Mechanism facts;
  facts.name = "abc_l2g";
  facts.title = "Attention with bounded memory, local to global";
  facts.equation =
      "slot l holds the global token number l, at position l * stride; others are not written\n"
      "y_i = sum_l softmax_l(scale q_i . K~_l) V~_l  (causal: global tokens j <= i)";
  facts.complexity = "time 4 B H T N K, memory of decoding B H N (K + V + 1)";
  facts.sources = "Peng et al. 2022, ABC (described, not run there)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T N";
  facts.presets = kPresets;
  facts.cost_cases = {"{slots: 256}"};
  facts.variants = {"{slots: 7, scale: 1}", "{slots: 12, stride: 3, mask_empty: false}"};
  facts.limits = {{"as many slots as global tokens give softmax attention to these",
                   "{slots: 32, stride: 2}",
                   {Form::noncausal, Form::causal, Form::cross},
                   {},
                   softmax_of_even_tokens}};
  return define_mechanism<AbcL2gParams, AbcL2gMixer>(
      std::move(facts), [](const AbcL2gParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
