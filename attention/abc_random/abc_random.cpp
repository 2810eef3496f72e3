// ABC with random control: parameters, mixer, literal definition, registry entry.
#include "attention/abc_random/abc_random.h"

#include "attention/common/abc/slot_choices.h"
#include "attention/common/slot_support.h"
#include "attention/define.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"abc", "language modelling: 64 slots (32 in the smaller setting)", {{"slots", "64"}}},
    {"abc_mlm", "masked language modelling (diverged there)", {{"slots", "128"}}},
    {"abc_cross", "translation of sentences, cross-attention: 32 slots", {{"slots", "32"}}},
    {"abc_causal", "translation of sentences, decoder: 32 slots", {{"slots", "32"}}},
    {"abc_cross_document",
     "translation of documents, cross-attention: 128 slots",
     {{"slots", "128"}}},
    {"abc_causal_document", "translation of documents, decoder: 64 slots", {{"slots", "64"}}}};

class AbcRandomMixer : public AttentionMixer {
 public:
  AbcRandomMixer(const AbcRandomParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const SlotMixing mixing =
        given_slot_mixing(params_, params_.pool == "mean", options(), context, draw_key(context));
    return slot_mix(mixing, options(), input, context, state, [&] {
      const int64_t H = options().heads;
      const Tensor positions = written_positions(options(), input, context);
      const Tensor slots = drawn_slots(context, positions);
      return Variable(one_hot_controls(slots, {}, H, params_.slots, input.k.dtype()));
    });
  }
  MixerCost mix_cost(const MixerShape& shape) const override {
    return slot_mix_cost(options(), params_.slots, shape);
  }

 private:
  // Drawn on the device of the positions, or given; noted in the record.
  Tensor drawn_slots(const MixerContext& context, const Tensor& positions) const {
    // Outside training draws change neither from step to step nor with the example.
    RandomKey key = draw_key(context);
    if (!context.training) key.step = 0;
    if (!context.training) key.device_step = nullptr;
    const Tensor examples = context.training ? context.place.examples : Tensor();
    const auto draw = [&] {
      return random_slots(key, examples, positions, options().heads, params_.slots);
    };
    if (context.record == nullptr) return draw();
    const auto given = context.record->given_draws.find("token_slots");
    const bool is_given = given != context.record->given_draws.end();
    const Tensor slots = is_given ? given->second.to(DType::i32).to(positions.device()) : draw();
    const Shape shape{positions.size(0), positions.size(1), options().heads};
    require_usage(slots.shape() == shape, "draws/token_slots: expected ", shape, ", got ",
                  slots.shape());
    context.record->draws["token_slots"] = slots.to(Device{}).to(DType::f64);
    return slots;
  }

  AbcRandomParams params_;
};

template <typename Number>
std::vector<Number> definition(const AbcRandomParams& params, const ReferenceSequence<Number>& s) {
  SlotDefinition d = slot_definition_of(params, s);
  d.divisor = params.pool == "mean" ? SlotDefinition::Divisor::read : SlotDefinition::Divisor::none;
  require(s.draws.contains("token_slots"), "abc_random: the definition needs the mixer's draws");
  return slot_definition(s, d, one_slot_each(s, recorded_slots(s, s.draws.at("token_slots"))));
}

}  // namespace

void AbcRandomParams::describe(ConfigDescription<AbcRandomParams>& d) {
  describe_preset(d, kPresets);
  d.field("slots", &AbcRandomParams::slots, "memory slots N").range(1, 4096);
  d.choice("pool", &AbcRandomParams::pool, {"sum", "mean"},
           "a slot holds the sum of its tokens, as the paper writes, or their mean");
  describe_slot_read(d, "slots never written");
}

Mechanism abc_random_mechanism() {
  Mechanism facts;
  facts.name = "abc_random";
  facts.title = "Attention with bounded memory, random control (ABC_RD)";
  facts.equation =
      "i_t uniform in the N slots; K~_l = sum of k_t with i_t = l, V~_l likewise\n"
      "y_i = sum_l softmax_l(scale q_i . K~_l) V~_l  (causal: sums over t <= i)";
  facts.complexity = "time 4 B H T N K, memory of decoding B H N (K + V + 1)";
  facts.sources = "Peng et al. 2022, ABC";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T N";
  facts.presets = kPresets;
  facts.cost_cases = {"{slots: 256}"};
  facts.variants = {"{slots: 7, pool: mean, scale: 1}",
                    "{slots: 20, pool: mean, mask_empty: false}"};
  const auto pooled = [](bool mean) {
    return [mean](const ReferenceSequence<double>& s) {
      return linear_attention_definition(
          s, [](int64_t, int64_t, int64_t) { return 1.0; },
          [mean](double x) { return mean ? x : 1.0; });
    };
  };
  const std::vector<Form> forms = {Form::noncausal, Form::causal, Form::cross};
  facts.limits = {{"one slot gives the sum of the values", "{slots: 1}", forms, {}, pooled(false)},
                  {"one slot of means gives the mean of the values",
                   "{slots: 1, pool: mean}",
                   forms,
                   {},
                   pooled(true)}};
  return define_mechanism<AbcRandomParams, AbcRandomMixer>(
      std::move(facts), [](const AbcRandomParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
