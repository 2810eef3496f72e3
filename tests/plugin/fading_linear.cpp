// fading_linear: linear attention in which older tokens fade; edit it.
#include <cmath>

#include "attention/common/feature_map_mechanism.h"
#include "attention/plugin.h"
#include "attention/registry.h"

namespace {

using namespace linnet;

constexpr double kFloor = 1e-3;  // of the denominator

// 1. Options. A field here is a key of recipes, of `--help` and of the README.
struct Params {
  double decay = 0.9;

  static void describe(ConfigDescription<Params>& d) {
    d.field("decay", &Params::decay,
            "factor by which a token multiplies the weights of the tokens before it")
        .above(0)
        .at_most(1);
  }
};

// 2. The mixer. AttentionMixer has the projections q, k, v and out; parameters of your own come
// from scope.own.parameter(name, shape, initializer).
class Mixer : public AttentionMixer {
 public:
  Mixer(const Params& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    attention_.feature_map = FeatureMap::elu1;
    attention_.normalizer = Normalizer::add;
    attention_.epsilon = kFloor;
  }

  // q, k, v [B,T,H,K] and the state so far -> y [B,T,H,K] and the next state. Compose operations of
  // autograd/ and attention/primitives/, which are differentiable: there is no backward to write.
  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const Tensor& q = input.q.value();
    const Variable log_decay(Tensor::full({q.size(0), q.size(1), q.size(2)},
                                          std::log(params_.decay), sum_dtype(q.dtype()),
                                          q.device()));
    return feature_map_mix(attention_, options(), input, {}, context, state, log_decay);
  }

  // The multiply-adds of mix(), and the bytes of its own parameters and state.
  MixerCost mix_cost(const MixerShape& shape) const override {
    return feature_map_cost(options(), options().head_width(), shape);
  }

 private:
  Params params_;
  LinearAttentionOptions attention_;
};

// 3. The definition: the equation for one sequence in plain loops, which shares nothing with the
// mixer. The suite compares both.
template <typename Number>
std::vector<Number> definition(const Params& params, const ReferenceSequence<Number>& s) {
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number weight = 0;
        for (int64_t c = 0; c < s.K; ++c) {
          weight += reference_feature(FeatureMap::elu1, s.query(i, h)[c]) *
                    reference_feature(FeatureMap::elu1, s.key(j, h)[c]);
        }
        for (int64_t l = j + 1; l <= i; ++l) {
          if (s.key_valid[static_cast<size_t>(l)] != 0) weight *= static_cast<Number>(params.decay);
        }
        return weight;
      },
      [](Number total) { return total + static_cast<Number>(kFloor); });
}

// 4. A limiting case: with these options the mechanism is something simpler.
std::vector<double> linear_attention_of(const ReferenceSequence<double>& s) {
  ConfigNode parameters = ConfigNode::map();
  parameters.set("normalizer", ConfigNode::scalar("add"));
  parameters.set("floor", ConfigNode::scalar("0.001"));
  return find_mechanism("linear").reference(parameters, s);
}

// 5. The entry: what it is, its forms and traits, which the suite checks, and option sets for it.
Mechanism fading_linear_mechanism() {
  Mechanism facts;
  facts.name = "fading_linear";
  facts.title = "Linear attention in which older tokens fade";
  facts.equation =
      "y_i = sum_j A_ij v_j / (sum_j A_ij + 0.001), j <= i,\n"
      "A_ij = decay^(i - j) phi(q_i) . phi(k_j), phi(x) = elu(x) + 1";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.sources = "an example";
  facts.traits.causal = facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T";
  facts.variants = {"{decay: 0.5}"};
  facts.limits = {{"without decay it is linear attention",
                   "{decay: 1}",
                   {Form::causal},
                   {},
                   linear_attention_of}};
  return define_mechanism<Params, Mixer>(
      std::move(facts), [](const Params& params, const auto& s) { return definition(params, s); });
}

}  // namespace

LINNET_PLUGIN() {
  register_mechanism(fading_linear_mechanism());
}
