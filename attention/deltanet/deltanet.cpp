// DeltaNet: parameters, mixer, literal definition, registry entry.
#include "attention/deltanet/deltanet.h"

#include "attention/common/gated_norm.h"
#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "attention/primitives/delta_attention/delta_attention.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/linear.h"
#include "autograd/reductions.h"

namespace linnet {
namespace {

constexpr double kLengthFloor = 1e-6;  // added to squared lengths

const std::vector<Preset> kPresets = {
    {"deltanet", "Yang et al. 2024, without its short convolution: the defaults", {}},
    {"gated",
     "Gated DeltaNet, without its short convolution",
     {{"decay", "true"}, {"gate", "true"}}}};

struct DeltanetParams {
  std::string preset = "none";
  bool decay = false;
  double beta_max = 1;
  bool gate = false;
  double epsilon = 1e-6;

  GatedNormSpec norm() const { return {gate, epsilon}; }
  static void describe(ConfigDescription<DeltanetParams>& d) {
    describe_preset(d, kPresets);
    d.field("decay", &DeltanetParams::decay,
            "every head fades its state by a factor made of the layer's input (Gated DeltaNet)");
    d.field("beta_max", &DeltanetParams::beta_max,
            "beta = beta_max sigmoid(x W); above 1 the state may turn its sign")
        .above(0)
        .at_most(2);
    describe_gated_norm(d);
  }
};

// silu(x) / |silu(x)| of every head's vector.
Variable directions(const Variable& x) {
  const Variable u = silu(x);
  const Variable squares = sum(multiply(u, u), -1);
  const Variable floor(Tensor::full({}, kLengthFloor, x.dtype(), x.value().device()));
  return divide(u, sqrt(add(squares, floor)));
}

class DeltanetMixer : public AttentionMixer {
 public:
  DeltanetMixer(const DeltanetParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params), norm_(params.norm(), options, scope.own) {
    const int64_t H = options.heads, E = options.width;
    beta_ = scope.own.parameter("beta.weight", {H, E}, init_xavier(1, E, H));
    if (!params.decay) return;
    decay_ = scope.own.parameter("decay.weight", {H, E}, init_xavier(1, E, H));
    // exp(rate) starts at 1 ... 16, and softplus(bias) at about 0.01: little fades at first.
    rate_ = scope.own.parameter("decay.rate", {H}, init_uniform(1));
    bias_ = scope.own.parameter("decay.bias", {H}, init_constant(-4.6));
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    require_usage(input.x.defined(), "deltanet: beta reads the layer's input; give inputs/x");
    const DType dtype = sum_dtype(input.q.dtype());
    const auto wide = [&](const Variable& x) { return as_dtype(x, dtype); };
    const Variable x = wide(input.x);
    DeltaAttentionVariables in{directions(wide(input.q)),
                               directions(wide(input.k)),
                               wide(input.v),
                               scale(sigmoid(linear(x, wide(beta_), {})), params_.beta_max),
                               {}};
    if (params_.decay) {
      const Variable step = softplus(linear(x, wide(decay_), wide(bias_)));
      in.log_decay = multiply(scale(exp(wide(rate_)), -1), step);
    }
    const DeltaAttentionResult result =
        delta_attention(in, {context.key_mask, context.segments, default_scale(options())},
                        carried(state, "S", dtype));
    return {norm_(as_dtype(result.y, input.q.dtype()), input.x), {{"S", result.state}}};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t H = options().heads, E = options().width, K = options().head_width();
    const auto rows = static_cast<double>(shape.batch);
    const double inputs = params_.decay ? 2 : 1;
    MixerCost cost;
    cost.projections = rows * static_cast<double>(shape.queries * H * E) * inputs;
    cost.mixing =
        rows * static_cast<double>(H) * delta_attention_multiply_adds(shape.queries, K, K);
    cost.bytes = static_cast<double>(H * E) * inputs * size_of(shape.dtype) +
                 static_cast<double>(params_.decay ? 2 * H : 0) * size_of(shape.dtype) +
                 rows * static_cast<double>(H * K * K) * size_of(sum_dtype(shape.dtype));
    norm_.add_cost(shape, cost);
    return cost;
  }

 private:
  DeltanetParams params_;
  GatedNorm norm_;
  Variable beta_, decay_, rate_, bias_;
};

template <typename Number>
std::vector<Number> definition(const DeltanetParams& params, const ReferenceSequence<Number>& s) {
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  const auto direction = [&](const Number* x) {
    std::vector<Number> u;
    for (int64_t c = 0; c < s.K; ++c) u.push_back(x[c] / (1 + std::exp(-x[c])));
    const Number squares = dot_product(u.data(), u.data(), s.K);
    for (Number& value : u) value /= std::sqrt(squares + static_cast<Number>(kLengthFloor));
    return u;
  };
  const auto from_input = [&](const char* name, int64_t t, int64_t h) {
    return dot_product(&s.parameter(name)[static_cast<size_t>(h * s.E)],
                       &s.x[static_cast<size_t>(t * s.E)], s.E);
  };
  for (int64_t h = 0; h < s.H; ++h) {
    std::vector<Number> state(static_cast<size_t>(s.K * s.V), 0);
    for (int64_t t = 0; t < s.T; ++t) {
      if (s.key_valid[static_cast<size_t>(t)] == 0) continue;
      const std::vector<Number> q = direction(s.query(t, h)), k = direction(s.key(t, h));
      Number fade = 1;
      if (params.decay) {
        const auto at = static_cast<size_t>(h);
        const Number step =
            std::log1p(std::exp(from_input("decay.weight", t, h) + s.parameter("decay.bias")[at]));
        fade = std::exp(-std::exp(s.parameter("decay.rate")[at]) * step);
      }
      const Number beta =
          static_cast<Number>(params.beta_max) / (1 + std::exp(-from_input("beta.weight", t, h)));
      for (int64_t e = 0; e < s.V; ++e) {
        Number expected = 0, read = 0;
        for (int64_t c = 0; c < s.K; ++c) {
          Number& value = state[static_cast<size_t>(c * s.V + e)];
          value *= fade;
          expected += k[static_cast<size_t>(c)] * value;
        }
        for (int64_t c = 0; c < s.K; ++c) {
          Number& value = state[static_cast<size_t>(c * s.V + e)];
          value += beta * k[static_cast<size_t>(c)] * (s.value(t, h)[e] - expected);
          read += q[static_cast<size_t>(c)] * value;
        }
        y[static_cast<size_t>((t * s.H + h) * s.V + e)] =
            read / std::sqrt(static_cast<Number>(s.K));
      }
    }
  }
  apply_gated_norm(params.norm(), s, y);
  return y;
}

}  // namespace

Mechanism deltanet_mechanism() {
  Mechanism facts;
  facts.name = "deltanet";
  facts.title = "DeltaNet: a linear state that is corrected towards each value";
  facts.equation =
      "S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T, y_t = RMSNorm(S_t^T q_t / "
      "sqrt(K)),\n"
      "q, k = silu(.) of length 1, beta_t = sigmoid(W x_t), a_t = 1 or exp(-exp(r) softplus(W' x_t "
      "+ b))";
  facts.complexity = "time B H T (3 K V + C (2 K + 3 V / 2)), memory of decoding B H K V";
  facts.sources =
      "Schlag et al. 2021, Linear Transformers Are Secretly Fast Weight Programmers; Yang et al. "
      "2024, Parallelizing Linear Transformers with the Delta Rule; Gated Delta Networks";
  facts.traits.causal = facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T";
  facts.presets = kPresets;
  facts.variants = {"{preset: gated}", "{beta_max: 2}"};
  facts.limits = {
      {"with beta = 0 nothing is written",
       "{beta_max: 1.0e-300}",
       {Form::causal},
       {},
       [](const ReferenceSequence<double>& s) { return std::vector<double>(s.v.size(), 0); }}};
  return define_mechanism<DeltanetParams, DeltanetMixer>(
      std::move(facts), [](const auto& params, const auto& s) { return definition(params, s); });
}

}  // namespace linnet
