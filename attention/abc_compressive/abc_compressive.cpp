// ABC, compressive: parameters, mixer, literal definition, registry entry.
#include "attention/abc_compressive/abc_compressive.h"

#include "attention/common/abc/slot_choices.h"
#include "attention/common/slot_support.h"
#include "attention/define.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"abc_mlm", "as many slots as the paper's masked language models", {{"slots", "128"}}}};

class AbcCompressiveMixer : public AttentionMixer {
 public:
  AbcCompressiveMixer(const AbcCompressiveParams& params, const MixerOptions& options,
                      const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const bool mean = params_.divide_by == "tokens";
    const SlotMixing mixing =
        given_slot_mixing(params_, mean, options(), context, draw_key(context));
    return slot_mix(mixing, options(), input, context, state, [&] {
      const PooledSlots pooled =
          pooled_slots(context.key_mask, context.segments, input.k.size(0), input.k.size(1),
                       params_.slots, input.k.value().device());
      return Variable(one_hot_controls(pooled.slots, mean ? Tensor() : pooled.weights,
                                       options().heads, params_.slots, input.k.dtype()));
    });
  }
  MixerCost mix_cost(const MixerShape& shape) const override {
    return slot_mix_cost(options(), params_.slots, shape);
  }

 private:
  AbcCompressiveParams params_;
};

template <typename Number>
std::vector<Number> definition(const AbcCompressiveParams& params,
                               const ReferenceSequence<Number>& s) {
  const bool mean = params.divide_by == "tokens";
  SlotDefinition d = slot_definition_of(params, s);
  d.divisor = mean ? SlotDefinition::Divisor::read : SlotDefinition::Divisor::none;
  // t counts valid tokens from 1, as equation 8 does.
  std::vector<double> t;
  double count = 0;
  for (const uint8_t valid : s.key_valid) t.push_back(valid != 0 ? ++count : 0);
  const double slots = static_cast<double>(params.slots);
  return slot_definition(s, d, [&](int64_t j, int64_t, int64_t l) {
    const double number = t[static_cast<size_t>(j)];
    if (number == 0 || std::floor((number - 1) * slots / count) != static_cast<double>(l)) {
      return Number{0};
    }
    return mean ? Number{1} : static_cast<Number>(slots / count);
  });
}

}  // namespace

void AbcCompressiveParams::describe(ConfigDescription<AbcCompressiveParams>& d) {
  describe_preset(d, kPresets);
  d.field("slots", &AbcCompressiveParams::slots, "memory slots N").range(1, 65536);
  d.choice("divide_by", &AbcCompressiveParams::divide_by, {"ratio", "tokens"},
           "divisor of a slot: n / N, as in equation 8, or the number of its tokens (their mean); "
           "the same where N divides the number n of tokens");
  describe_slot_read(d, "slots without tokens");
}

Mechanism abc_compressive_mechanism() {
  Mechanism facts;
  facts.name = "abc_compressive";
  facts.title = "Attention with bounded memory, mean-pooled";
  facts.equation =
      "c = n / N; slot l holds the sum of tokens t with floor((t - 1) / c) = l, t = 1, ..., n, "
      "divided by c\n"
      "y_i = sum_l softmax_l(scale q_i . K~_l) V~_l";
  facts.complexity = "time 4 B H T N K";
  facts.sources = "Peng et al. 2022, ABC, equation 8";
  facts.traits.noncausal = true;
  facts.traits.growth = "T N";
  facts.presets = kPresets;
  facts.cost_cases = {"{slots: 256}"};
  facts.variants = {"{slots: 7, divide_by: tokens, scale: 1}", "{slots: 50, mask_empty: false}"};
  facts.limits = {{"as many slots as tokens give softmax attention",
                   "{slots: 50, divide_by: tokens}",
                   {Form::noncausal},
                   {},
                   softmax_of_tokens},
                  {"one slot gives the mean of the values",
                   "{slots: 1}",
                   {Form::noncausal},
                   {},
                   mean_of_values}};
  return define_mechanism<AbcCompressiveParams, AbcCompressiveMixer>(
      std::move(facts), [](const AbcCompressiveParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
