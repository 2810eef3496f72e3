// Gated linear attention: parameters, mixer, literal definition, registry entry.
#include "attention/gated_linear/gated_linear.h"

#include "attention/common/decayed_state_definition.h"
#include "attention/common/feature_map_mechanism.h"
#include "attention/common/head_logits.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/linear.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {{"fla", "flash-linear-attention: the defaults", {}}};

struct GlaParams {
  std::string preset = "none";
  std::optional<double> scale;  // null: 1/sqrt(K)
  int64_t rank = 16;
  bool gate = true;
  double temperature = 16, epsilon = 1e-5;
  GatedNormSpec norm() const { return {gate, epsilon}; }
  static void describe(ConfigDescription<GlaParams>& d) {
    describe_preset(d, kPresets);
    describe_scale(d, "factor of q; null: 1/sqrt(K)");
    d.field("rank", &GlaParams::rank, "rank of the decays' matrix").range(1, 4096);
    d.field("temperature", &GlaParams::temperature, "divisor of the log-decays").above(0);
    describe_gated_norm(d);
  }
};

class GlaMixer : public AttentionMixer {
 public:
  GlaMixer(const GlaParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        attention_(sums_without_denominator(params.scale.value_or(default_scale(options)))),
        norm_(params.norm(), options, scope.own) {
    const int64_t E = options.width, R = params.rank;
    down_ = scope.own.parameter("decay_down.weight", {R, E}, init_xavier(1, E, R));
    up_ = scope.own.parameter("decay_up.weight", {E, R}, init_xavier(1, R, E));
    bias_ = scope.own.parameter("decay_up.bias", {E}, init_constant(0));
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    require_usage(input.x.defined(), "gated_linear: decays read the layer's input; give inputs/x");
    const auto wide = [&](const Variable& x) { return as_dtype(x, sum_dtype(input.q.dtype())); };
    const Variable logits = linear(linear(wide(input.x), wide(down_)), wide(up_), wide(bias_));
    const Variable log_decay = scale(softplus(scale(logits, -1)), -1 / params_.temperature);
    const MixResult result = feature_map_mix(attention_, options(), input, {}, context, state,
                                             reshape(log_decay, input.k.shape()));
    return {norm_(result.y, input.x), result.state};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto E = static_cast<double>(options().width), R = static_cast<double>(params_.rank);
    MixerCost cost = feature_map_cost(options(), options().head_width(), shape);
    cost.projections += static_cast<double>(shape.batch * shape.queries) * 2 * E * R;
    cost.bytes += (2 * R + 1) * E * static_cast<double>(size_of(shape.dtype));
    norm_.add_cost(shape, cost);
    return cost;
  }

 private:
  GlaParams params_;
  LinearAttentionOptions attention_;
  GatedNorm norm_;
  Variable down_, up_, bias_;
};

template <typename Number>
std::vector<Number> definition(const GlaParams& params, const ReferenceSequence<Number>& s) {
  const auto log_decay = [&](int64_t t, int64_t h, int64_t c) {
    const int64_t channel = h * s.K + c;
    Number z = s.parameter("decay_up.bias")[static_cast<size_t>(channel)];
    for (int64_t r = 0; r < params.rank; ++r) {
      z += s.parameter("decay_up.weight")[static_cast<size_t>(channel * params.rank + r)] *
           head_logit(s, "decay_down", t, r);
    }
    return -std::log1p(std::exp(-z)) / static_cast<Number>(params.temperature);
  };
  std::vector<Number> y = decayed_state_definition(s, log_decay);
  for (Number& o : y) o *= static_cast<Number>(params.scale.value_or(default_scale(s.options)));
  apply_gated_norm(params.norm(), s, y);
  return y;
}

}  // namespace

Mechanism gated_linear_mechanism() {
  Mechanism facts;
  facts.name = "gated_linear";
  facts.title = "Gated linear attention (GLA): every channel of a key fades as the input says";
  facts.equation =
      "S_t = diag(a_t) S_{t-1} + k_t v_t^T, a_t = sigmoid(x_t W W' + b)^(1/temperature),\n"
      "y_t = RMSNorm(S_t^T q_t / sqrt(K)) * silu(x_t W'')";
  facts.complexity = "time B H T (2 K V + 2 E rank / H), memory of decoding B H K (V + 1)";
  facts.sources = "Yang et al. 2023, Gated Linear Attention Transformers; flash-linear-attention";
  facts.traits = recurrent_traits();
  facts.presets = kPresets;
  facts.variants = {"{gate: false, rank: 3, temperature: 1}"};
  facts.limits = {limit_without_decay(
      "{gate: false, scale: 1}", {{"decay_up.weight", 0}, {"decay_up.bias", 1e9}}, 1e-5, false)};
  return define_mechanism<GlaParams, GlaMixer>(
      std::move(facts), [](const auto& params, const auto& s) { return definition(params, s); });
}

}  // namespace linnet
