// Soft-max attention over all keys: parameters, mixer, registry entry.
#include "attention/softmax/softmax.h"

#include "attention/define.h"
#include "attention/mixer_support.h"
#include "attention/primitives/block_attention.h"

namespace linnet {

namespace {

class SoftmaxMixer : public AttentionMixer {
 public:
  SoftmaxMixer(const SoftmaxParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    BlockAttentionContext block = block_context(options(), context);
    block.options.scale = params_.scale.value_or(default_scale(options()));
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    if (options().form == Form::cross) {
      MixerState encoded = state;
      if (encoded.empty()) encoded = encoded_source(input, context);
      block.key_mask = mask_from_state(encoded, "valid");
      const Variable y = block_attention({input.q,
                                          as_dtype(encoded.at("k"), input.q.dtype()),
                                          as_dtype(encoded.at("v"), input.q.dtype()),
                                          {},
                                          {},
                                          {}},
                                         block);
      return {y, std::move(encoded)};
    }
    if (options().form == Form::noncausal) {
      return {block_attention({input.q, input.k, input.v, {}, {}, {}}, block), {}};
    }
    return causal_with_cache(input, context, state, block, kKeepAll);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    return full_attention_cost(options(), shape);
  }

 private:
  SoftmaxParams params_;
};

template <typename Number>
std::vector<Number> definition(const SoftmaxParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  return softmax_attention_reference(
      s, scale, [](int64_t, int64_t) { return true; },
      [](int64_t, int64_t, int64_t) { return Number{0}; });
}

}  // namespace

void SoftmaxParams::describe(ConfigDescription<SoftmaxParams>& d) {
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  describe_dropout(d);
}

Mechanism softmax_mechanism() {
  Mechanism facts;
  facts.name = "softmax";
  facts.title = "Soft-max attention";
  facts.equation = "y_i = sum_j softmax_j(scale q_i . k_j) v_j";
  facts.complexity = "time 2 B H T^2 K, memory of decoding 2 B T H K";
  facts.sources = "Vaswani et al. 2017, Attention Is All You Need";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T^2";
  facts.variants = {"{scale: 1}"};
  facts.limits = {{"equal values are returned as they are",
                   "{}",
                   {Form::noncausal, Form::causal, Form::cross},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "v.weight") std::fill(values.begin(), values.end(), 0);
                   },
                   [](const ReferenceSequence<double>& s) {
                     std::vector<double> y;
                     for (int64_t i = 0; i < s.T; ++i) {
                       y.insert(y.end(), s.value(0, 0), s.value(0, 0) + s.H * s.V);
                     }
                     return y;
                   }}};
  return define_mechanism<SoftmaxParams, SoftmaxMixer>(
      std::move(facts), [](const SoftmaxParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
