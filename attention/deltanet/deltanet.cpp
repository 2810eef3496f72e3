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
  bool decay = false, gate = false;
  double beta_max = 1, epsilon = 1e-6;
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
        end_(params.end(), options, scope.own),
        decay_(params.decay ? StepDecay(options, scope.own) : StepDecay()) {}

  MixResult mix(const MixInput& given, const MixerContext& context,
                const MixerState& state) const override {
    MixerState next;
    const MixInput input = convolution_(given, context, state, next);
    const auto K = static_cast<double>(options().head_width());
    const NormSpec rms{NormKind::rms, params_.epsilon / K};  // gives vectors of length sqrt(K)
    DeltaAttentionVariables in{
        norm(input.q, {}, {}, rms), scale(norm(input.k, {}, {}, rms), 1 / std::sqrt(K)), input.v,
        scale(sigmoid(beta_(given.x)), params_.beta_max), decay_(given.x).log_decay};
    if (given.q.dtype() == DType::bf16 &&
        delta_attention_takes_rounded(in.q.value(), options().head_width())) {
      for (Variable* x : {&in.q, &in.k, &in.v}) *x = as_dtype(*x, DType::bf16);
    }
    const DeltaAttentionResult sums =
        delta_attention(in, {context.key_mask, context.segments, 1 / K},
                        carried(state, "S", sum_dtype(given.q.dtype())));
    next["S"] = sums.state;
    return {as_dtype(end_(sums.y, given.x), given.q.dtype()), next};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto heads = static_cast<double>(shape.batch * options().heads);
    const int64_t K = options().head_width();
    MixerCost cost{0, heads * delta_attention_multiply_adds(shape.queries, K, K),
                   heads * static_cast<double>(K * K) * size_of(sum_dtype(shape.dtype))};
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
  GatedNorm end_;
  StepDecay decay_;
};

template <typename Number>
std::vector<Number> definition(const DeltanetParams& params, const ReferenceSequence<Number>& in) {
  ReferenceSequence<Number> s = short_convolution_definition({params.conv}, in);
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

}  // namespace

Mechanism deltanet_mechanism() {
  Mechanism facts;
  facts.name = "deltanet";
  facts.title = "DeltaNet: a linear state that is corrected towards each value";
  facts.equation =
      "S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T, beta_t = sigmoid(W x_t),\n"
      "y_t = RMSNorm(S_t^T q_t), |q| = |k| = 1, a_t = 1 or exp(-e^r softplus(U x_t + b))";
  facts.complexity = "time B H T (3 K V + C (K + V)), C = 32, memory of decoding B H K V";
  facts.sources = "Schlag et al. 2021; Yang et al. 2024, DeltaNet and Gated DeltaNet";
  facts.traits = recurrent_traits();
  facts.presets = kPresets;
  facts.variants = {"{preset: gated}", "{conv: 0, beta_max: 2}"};
  facts.limits = {
      causal_limit("with beta = 0 nothing is written", "{beta_max: 0}", {},
                   [](const auto& s) { return std::vector<double>(s.v.size(), 0); }),
      limit_of_own_value("with beta = 1 a key reads the value just written, whatever was there",
                         "{conv: 0, beta_max: 2, decay: true, epsilon: 1.0e-300}",
                         {{"beta.weight", 0}}, true)};
  return define_mechanism<DeltanetParams, DeltanetMixer>(
      std::move(facts), [](const auto& params, const auto& s) { return definition(params, s); });
}

}  // namespace linnet
