// Retention: parameters, mixer, literal definition, registry entry.
#include "attention/retention/retention.h"

#include "attention/common/decayed_state_definition.h"
#include "attention/common/feature_map_mechanism.h"
#include "attention/common/gated_norm.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/layout.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"paper", "Sun et al. 2023: a group norm, which subtracts the mean", {{"norm", "layer"}}},
    {"torchscale", "the authors' code: the defaults", {}}};

struct RetentionParams {
  std::string preset = "none";
  std::optional<double> scale;  // null: 1/sqrt(K)
  NormKind norm = NormKind::rms;
  bool gate = true;
  double epsilon = 1e-6;

  GatedNormSpec end() const { return {gate, epsilon, false, norm}; }
  static void describe(ConfigDescription<RetentionParams>& d) {
    describe_preset(d, kPresets);
    describe_scale(d, "factor of q; null: 1/sqrt(K)");
    d.choice("norm", &RetentionParams::norm, {{"rms", NormKind::rms}, {"layer", NormKind::layer}},
             "division by the root mean square of a head's outputs; layer: minus their mean first");
    describe_gated_norm(d);
  }
};

// log(-log(1 - 2^(-5 - h))): state h fades by exp(-exp(rate)), whatever the rate.
void first_rates(const Tensor& values, const RandomKey&) {
  for (int64_t h = 0; h < values.elements(); ++h) {
    values.slice(h, {}).fill(std::log(-std::log1p(-std::exp2(-5.0 - static_cast<double>(h)))));
  }
}

class RetentionMixer : public AttentionMixer {
 public:
  RetentionMixer(const RetentionParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(options, scope),
        attention_(sums_without_denominator(params.scale.value_or(default_scale(options)))),
        end_(params.end(), options, scope.own),
        rates_(scope.own.buffer("rates.log_rate", {options.heads}, first_rates)) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const Variable log_decay = scale(exp(as_dtype(rates_, sum_dtype(input.q.dtype()))), -1);
    MixResult result =
        feature_map_mix(attention_, options(), input, {}, context, state,
                        expand(log_decay, {input.q.size(0), input.q.size(1), options().heads}));
    result.y = end_(result.y, input.x);
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = feature_map_cost(options(), options().head_width(), shape);
    cost.bytes += static_cast<double>(options().heads) * size_of(sum_dtype(shape.dtype));
    end_.add_cost(shape, cost);
    return cost;
  }

 private:
  LinearAttentionOptions attention_;
  GatedNorm end_;
  Variable rates_;
};

template <typename Number>
std::vector<Number> definition(const RetentionParams& params, const ReferenceSequence<Number>& s) {
  const auto root = std::sqrt(static_cast<double>(s.K));
  std::vector<Number> y = decayed_state_definition(s, [&](int64_t, int64_t h, int64_t) {
    return -std::exp(s.parameter("rates.log_rate")[static_cast<size_t>(h)]);
  });
  for (Number& each : y) each *= static_cast<Number>(params.scale.value_or(1 / root));
  apply_gated_norm(params.end(), s, y);
  return y;
}

}  // namespace

Mechanism retention_mechanism() {
  Mechanism facts;
  facts.name = "retention";
  facts.title = "Retention: linear attention in which every head forgets at its own rate";
  facts.equation =
      "y_i = RMSNorm(sum_{j <= i} g_h^(i - j) (scale q_i . k_j) v_j) silu(x_i W), g_h = 1 - "
      "2^(-5 - h)";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.sources = "Sun et al. 2023, Retentive Network: A Successor to Transformer";
  facts.traits = recurrent_traits();
  facts.presets = kPresets;
  facts.variants = {"{preset: paper, scale: 1}", "{gate: false}"};
  facts.limits = {
      limit_without_decay("{gate: false, scale: 1}", {{"rates.log_rate", -1000}}, 1e-6, false),
      limit_of_own_value("a retention that forgets everything reads its own value",
                         "{gate: false, epsilon: 1.0e-300}", {{"rates.log_rate", 10}}, false)};
  return define_mechanism<RetentionParams, RetentionMixer>(
      std::move(facts), [](const auto& params, const auto& s) { return definition(params, s); });
}

}  // namespace linnet
