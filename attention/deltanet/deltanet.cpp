// DeltaNet: parameters, mixer, literal definition, registry entry.
#include "attention/deltanet/deltanet.h"

#include "attention/common/decayed_state_definition.h"
#include "attention/common/head_logits.h"
#include "attention/common/short_convolution.h"
#include "attention/common/step_decay.h"
#include "attention/define.h"
#include "attention/primitives/delta_attention/delta_attention.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"deltanet", "Yang et al. 2024: the defaults", {}},
    {"gated", "Gated DeltaNet", {{"decay", "true"}, {"gate", "true"}}}};

struct DeltanetParams {
  std::string preset = "none";
  int64_t conv = 4;
  bool decay = false;
  double beta_max = 1;
  bool gate = false;
  double epsilon = 1e-6;

  GatedNormSpec end() const { return {gate, epsilon}; }
  static void describe(ConfigDescription<DeltanetParams>& d) {
    describe_preset(d, kPresets);
    describe_short_convolution(d);
    d.field("decay", &DeltanetParams::decay, "states fade by steps made of the layer's input");
    d.field("beta_max", &DeltanetParams::beta_max, "beta = beta_max sigmoid(w . x)").range(0, 2);
    describe_gated_norm(d);
  }
};

class DeltanetMixer : public AttentionMixer {
 public:
  DeltanetMixer(const DeltanetParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        convolution_({params.conv}, options, scope.own),
        beta_("beta", options, scope.own),
        end_(params.end(), options, scope.own) {
    if (params.decay) decay_ = StepDecay(options, scope.own);
  }

  MixResult mix(const MixInput& given, const MixerContext& context,
                const MixerState& state) const override {
    MixResult result;
    const MixInput input = convolution_(given, context, state, result.state);
    const double root = std::sqrt(static_cast<double>(options().head_width()));
    const DType dtype = sum_dtype(given.q.dtype());
    const auto wide = [&](const Variable& x) { return as_dtype(x, dtype); };
    const auto direction = [&](const Variable& x) {  // of length 1
      const NormSpec mean_square{NormKind::rms, params_.epsilon / (root * root)};
      return scale(norm(wide(x), {}, {}, mean_square), 1 / root);
    };
    const Variable beta = sigmoid(beta_(given.x));
    const DeltaAttentionResult sums = delta_attention(
        {direction(input.q), direction(input.k), wide(input.v), scale(beta, params_.beta_max),
         params_.decay ? decay_(given.x).log_decay : Variable()},
        {context.key_mask, context.segments, 1 / root}, carried(state, "S", dtype));
    result.state["S"] = sums.state;
    result.y = end_(as_dtype(sums.y, given.q.dtype()), given.x);
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto heads = static_cast<double>(shape.batch * options().heads);
    const int64_t K = options().head_width();
    MixerCost cost;
    cost.mixing = heads * delta_attention_multiply_adds(shape.queries, K, K);
    cost.bytes = heads * static_cast<double>(K * K) * size_of(sum_dtype(shape.dtype));
    beta_.add_cost(shape, cost);
    decay_.add_cost(shape, cost);
    convolution_.add_cost(shape, cost);
    end_.add_cost(shape, cost);
    return cost;
  }

 private:
  DeltanetParams params_;
  ShortConvolution convolution_;
  HeadLogits beta_;
  StepDecay decay_;
  GatedNorm end_;
};

template <typename Number>
std::vector<Number> definition(const DeltanetParams& params,
                               const ReferenceSequence<Number>& given) {
  ReferenceSequence<Number> s = short_convolution_definition({params.conv}, given);
  const auto K = static_cast<Number>(s.K);
  for (std::vector<Number>* x : {&s.q, &s.k}) {
    apply_gated_norm({false, params.epsilon / static_cast<double>(s.K)}, s, *x);
    for (Number& each : *x) each /= x == &s.q ? K : std::sqrt(K);
  }
  const auto log_decay = [&](int64_t t, int64_t h, int64_t) {
    return params.decay ? step_decay_definition(s, t, h).second : Number{0};
  };
  std::vector<Number> y = decayed_state_definition(s, log_decay, [&](int64_t t, int64_t h) {
    return static_cast<Number>(params.beta_max) / (1 + std::exp(-head_logit(s, "beta", t, h)));
  });
  apply_gated_norm(params.end(), s, y);
  return y;
}

// beta_max / 2 for beta, and queries that equal their keys.
void same_keys(const std::string& name, std::vector<double>& values) {
  if (name == "beta.weight") std::fill(values.begin(), values.end(), 0);
  if (!name.starts_with("q.") && !name.starts_with("k.")) return;
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i + 1));
}

}  // namespace

Mechanism deltanet_mechanism() {
  Mechanism facts;
  facts.name = "deltanet";
  facts.title = "DeltaNet: a linear state that is corrected towards each value";
  facts.equation =
      "S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T, y_t = RMSNorm(S_t^T q_t / "
      "sqrt(K)),\n|q| = |k| = 1, beta_t = sigmoid(W x_t), a_t = 1 or exp(-e^r softplus(U x_t + b))";
  facts.complexity = "time B H T (3 K V + C (2 K + 3 V / 2)), memory of decoding B H K V";
  facts.sources =
      "Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule; Gated DeltaNet";
  facts.traits.causal = facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T";
  facts.presets = kPresets;
  facts.variants = {"{preset: gated}", "{conv: 0, beta_max: 2}"};
  facts.limits = {
      causal_limit("with beta = 0 nothing is written", "{beta_max: 0}", {},
                   [](const auto& s) { return std::vector<double>(s.v.size(), 0); }),
      causal_limit("with beta = 1 a key reads the value just written, whatever was there before",
                   "{conv: 0, beta_max: 2, decay: true, epsilon: 1.0e-300}", same_keys,
                   [](const auto& s) {
                     std::vector<double> y = short_convolution_definition({0}, s).v;
                     apply_gated_norm({false, 1e-300}, s, y);
                     return y;
                   })};
  return define_mechanism<DeltanetParams, DeltanetMixer>(
      std::move(facts), [](const auto& params, const auto& s) { return definition(params, s); });
}

}  // namespace linnet
