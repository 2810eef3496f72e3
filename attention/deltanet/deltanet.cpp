// DeltaNet: parameters, mixer, literal definition, registry entry.
#include "attention/deltanet/deltanet.h"

#include "attention/common/gated_norm.h"
#include "attention/common/input_decay.h"
#include "attention/common/short_convolution.h"
#include "attention/define.h"
#include "attention/primitives/delta_attention/delta_attention.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"deltanet", "Yang et al. 2024, Parallelizing ...: the defaults", {}},
    {"gated", "Yang et al. 2024, Gated Delta Networks", {{"decay", "true"}, {"gate", "true"}}}};

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
    d.field("decay", &DeltanetParams::decay,
            "every head fades its state by a factor made of the layer's input");
    d.field("beta_max", &DeltanetParams::beta_max,
            "beta = beta_max sigmoid(w . x); above 1 the state may change its sign")
        .above(0)
        .at_most(2);
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
    if (params.decay) decay_ = InputDecay(options, scope.own);
  }

  MixResult mix(const MixInput& given, const MixerContext& context,
                const MixerState& state) const override {
    require_usage(given.x.defined(), "deltanet: beta reads the layer's input; give inputs/x");
    MixResult result;
    const MixInput input = convolution_(given, context, state, result.state);
    const DType dtype = sum_dtype(given.q.dtype());
    const auto K = static_cast<double>(options().head_width());
    // Of length sqrt(K).
    const auto direction = [&](const Variable& x) {
      return norm(as_dtype(x, dtype), {}, {}, {NormKind::rms, params_.epsilon / K});
    };
    const DeltaAttentionVariables variables{
        direction(input.q), scale(direction(input.k), 1 / std::sqrt(K)), as_dtype(input.v, dtype),
        scale(sigmoid(beta_(given.x)), params_.beta_max),
        params_.decay ? decay_(given.x).log_decay : Variable()};
    const DeltaAttentionResult sum = delta_attention(
        variables, {context.key_mask, context.segments, 1 / K}, carried(state, "S", dtype));
    result.state["S"] = sum.state;
    result.y = end_(as_dtype(sum.y, given.q.dtype()), given.x);
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
  InputProduct beta_;
  InputDecay decay_;
  GatedNorm end_;
};

template <typename Number>
std::vector<Number> definition(const DeltanetParams& params,
                               const ReferenceSequence<Number>& given) {
  ReferenceSequence<Number> s = short_convolution_definition({params.conv}, given);
  const auto K = static_cast<Number>(s.K);
  for (std::vector<Number>* x : {&s.q, &s.k}) {
    for (int64_t at = 0; at < std::ssize(*x); at += s.K) {
      Number* u = &(*x)[static_cast<size_t>(at)];
      const Number square = dot_product(u, u, s.K) + static_cast<Number>(params.epsilon);
      const Number length = std::sqrt(x == &s.q ? square * K : square);
      for (int64_t c = 0; c < s.K; ++c) u[c] /= length;
    }
  }
  std::vector<Number> y = recurrence_definition(s, [&](int64_t t, int64_t h) {
    const Number fade = params.decay ? input_decay_factor(s, t, h) : 1;
    const Number share = 1 + std::exp(-input_product(s, "beta.weight", t, h));
    return StateStep<Number>{{fade}, static_cast<Number>(params.beta_max) / share, true};
  });
  apply_gated_norm(params.end(), s, y);
  return y;
}

// Silent beta_max: beta 0. Otherwise beta 1, and queries that equal their keys, of length 1.
void equal_keys(const std::string& name, std::vector<double>& values) {
  if (name == "beta.weight") std::fill(values.begin(), values.end(), 0);
  if (!name.starts_with("q.") && !name.starts_with("k.")) return;
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i + 1));
}

const std::vector<LimitingCase> kLimits = {
    {"with beta = 0 nothing is written",
     "{beta_max: 1.0e-300}",
     {Form::causal},
     {},
     [](const auto& s) { return std::vector<double>(s.v.size(), 0); }},
    {"with beta = 1 a key reads the value just written, whatever was there",
     "{conv: 0, beta_max: 2, decay: true, epsilon: 1.0e-300}",
     {Form::causal},
     equal_keys,
     [](const auto& s) {
       std::vector<double> y = short_convolution_definition({0}, s).v;
       apply_gated_norm({false, 1e-300}, s, y);
       return y;
     }},
    {"states that do not fade are those without decay",
     "{preset: gated}",
     {Form::causal},
     [](const std::string& name, std::vector<double>& values) {
       if (name == "rates.decay") std::fill(values.begin(), values.end(), -1000);
     },
     [](const auto& s) {
       DeltanetParams params;
       params.gate = true;
       return definition(params, s);
     }}};

}  // namespace

Mechanism deltanet_mechanism() {
  Mechanism facts;
  facts.name = "deltanet";
  facts.title = "DeltaNet: a linear state that is corrected towards each value";
  facts.equation =
      "S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T, y_t = RMSNorm(S_t^T q_t),\n"
      "q, k, v = silu(conv(.)), |q| = |k| = 1, beta_t = sigmoid(W x_t), a_t = 1 or "
      "exp(-exp(r) softplus(W' x_t + b))";
  facts.complexity = "time B H T (3 K V + C (2 K + 3 V / 2)), memory of decoding B H K V";
  facts.sources =
      "Schlag et al. 2021, Linear Transformers Are Secretly Fast Weight Programmers; Yang et al. "
      "2024, Parallelizing Linear Transformers with the Delta Rule; Gated Delta Networks";
  facts.traits.causal = facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T";
  facts.presets = kPresets;
  facts.variants = {"{preset: gated}", "{conv: 0, beta_max: 2}"};
  facts.limits = kLimits;
  return define_mechanism<DeltanetParams, DeltanetMixer>(
      std::move(facts), [](const auto& params, const auto& s) { return definition(params, s); });
}

}  // namespace linnet
