// fading_linear: linear attention in which older tokens fade; edit it.
#include <algorithm>
#include <cmath>

#include "attention/common/feature_map_mechanism.h"
#include "attention/plugin.h"
#include "attention/registry.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/layout.h"

namespace {

using namespace linnet;

// 1. Options. A field here is a key of recipes, of `--help` and of the README.
struct Params {
  double decay = 0.9;
  double floor = 1e-3;

  static void describe(ConfigDescription<Params>& d) {
    d.field("decay", &Params::decay,
            "factor by which a token multiplies the weights of the tokens before it, at first")
        .above(0)
        .below(1);
    d.field("floor", &Params::floor, "added to the denominator").above(0);
  }
};

// 2. The mixer. AttentionMixer has the projections q, k, v and out; the learned decay is our own.
class Mixer : public AttentionMixer {
 public:
  Mixer(const Params& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope) {
    // decay = sigmoid(logit) stays between 0 and 1 whatever the optimizer does.
    const double logit = std::log(params.decay / (1 - params.decay));
    logit_ = scope.own.parameter("rates.decay", {options.heads}, init_constant(logit));
    attention_.feature_map = FeatureMap::elu1;
    attention_.normalizer = Normalizer::add;
    attention_.epsilon = params.floor;
  }

  // q, k, v [B,T,H,K] and the state so far -> y [B,T,H,K] and the next state. Compose operations of
  // autograd/ and attention/primitives/, which are differentiable: there is no backward to write.
  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const Tensor& q = input.q.value();
    const Variable logit = as_dtype(logit_, sum_dtype(q.dtype()));     // f32, f64 where q is f64
    const Variable log_decay = scale(softplus(scale(logit, -1)), -1);  // log sigmoid(logit), [H]
    return feature_map_mix(attention_, options(), input, {}, context, state,
                           expand(log_decay, {q.size(0), q.size(1), q.size(2)}));
  }

  // The multiply-adds of mix(), and the bytes of its own parameters and state.
  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = feature_map_cost(options(), options().head_width(), shape);
    cost.bytes += static_cast<double>(options().heads) * size_of(sum_dtype(shape.dtype));
    return cost;
  }

 private:
  Variable logit_;
  LinearAttentionOptions attention_;
};

// 3. The definition: the equation for one sequence in plain loops, which shares nothing with the
// mixer. The suite compares both.
template <typename Number>
std::vector<Number> definition(const Params& params, const ReferenceSequence<Number>& s) {
  const std::vector<Number>& logit = s.parameter("rates.decay");  // [H]
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        const Number decay = 1 / (1 + std::exp(-logit[static_cast<size_t>(h)]));
        Number weight = 0;
        for (int64_t c = 0; c < s.K; ++c) {
          weight += reference_feature(FeatureMap::elu1, s.query(i, h)[c]) *
                    reference_feature(FeatureMap::elu1, s.key(j, h)[c]);
        }
        for (int64_t l = j + 1; l <= i; ++l) {
          if (s.key_valid[static_cast<size_t>(l)] != 0) weight *= decay;
        }
        return weight;
      },
      [&](Number total) { return total + static_cast<Number>(params.floor); });
}

// 4. A limiting case: with these values of the parameters the mechanism is something simpler.
void without_decay(const std::string& name, std::vector<double>& values) {
  if (name == "rates.decay") std::fill(values.begin(), values.end(), 1e9);
}
std::vector<double> linear_attention_of(const ReferenceSequence<double>& s) {
  ConfigNode options = ConfigNode::map();
  options.set("normalizer", ConfigNode::scalar("add"));
  options.set("floor", ConfigNode::scalar("0.001"));
  return find_mechanism("linear").reference(options, s);
}

// 5. The entry: what it is, its forms and traits, which the suite checks, and option sets for it.
Mechanism fading_linear_mechanism() {
  Mechanism facts;
  facts.name = "fading_linear";
  facts.title = "Linear attention in which older tokens fade";
  facts.equation =
      "y_i = sum_j A_ij v_j / (sum_j A_ij + floor), j <= i,\n"
      "A_ij = sigmoid(r_h)^(i - j) phi(q_i) . phi(k_j), phi(x) = elu(x) + 1";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.sources = "an example";
  facts.traits.causal = facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T";
  facts.variants = {"{decay: 0.5, floor: 0.1}"};
  facts.limits = {{"without decay it is linear attention",
                   "{}",
                   {Form::causal},
                   without_decay,
                   linear_attention_of}};
  return define_mechanism<Params, Mixer>(
      std::move(facts), [](const Params& params, const auto& s) { return definition(params, s); });
}

}  // namespace

LINNET_PLUGIN() {
  register_mechanism(fading_linear_mechanism());
}
