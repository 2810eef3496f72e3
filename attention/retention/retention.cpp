// Retention: parameters, mixer, literal definition, registry entry.
#include "attention/retention/retention.h"

#include "attention/common/feature_map_mechanism.h"
#include "attention/common/gated_norm.h"
#include "autograd/layout.h"

namespace linnet {
namespace {

struct RetentionParams {
  std::optional<double> scale;  // null: 1/sqrt(K)
  bool gate = true;
  double epsilon = 1e-6;

  GatedNormSpec norm() const { return {gate, epsilon}; }
  static void describe(ConfigDescription<RetentionParams>& d) {
    describe_scale(d, "factor of q; null: 1/sqrt(K)");
    describe_gated_norm(d);
  }
};

class RetentionMixer : public AttentionMixer {
 public:
  RetentionMixer(const RetentionParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(options, scope), norm_(params.norm(), options, scope.own) {
    const auto rates = [](const Tensor& values, const RandomKey&) {
      for (int64_t h = 0; h < values.elements(); ++h) {
        values.slice(h, {}).fill(std::log1p(-std::exp2(-5.0 - static_cast<double>(h))));
      }
    };
    log_decay_ = scope.own.buffer("log_decay", {options.heads}, rates);
    attention_.feature_map = FeatureMap::identity;
    attention_.query_scale = params.scale.value_or(default_scale(options));
    attention_.normalizer = Normalizer::none;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const Variable rates = as_dtype(log_decay_, sum_dtype(input.q.dtype()));
    const Variable decay = expand(rates, {input.q.size(0), input.q.size(1), options().heads});
    MixResult result = feature_map_mix(attention_, options(), input, {}, context, state, decay);
    result.y = norm_(result.y, input.x);
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = feature_map_cost(options(), options().head_width(), shape);
    cost.bytes += static_cast<double>(options().heads) * size_of(sum_dtype(shape.dtype));
    norm_.add_cost(shape, cost);
    return cost;
  }

 private:
  GatedNorm norm_;
  Variable log_decay_;
  LinearAttentionOptions attention_;
};

template <typename Number>
std::vector<Number> definition(const RetentionParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  std::vector<Number> y = linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number a = scale * dot_product(s.query(i, h), s.key(j, h), s.K);
        const Number decay = std::exp(s.parameter("log_decay")[static_cast<size_t>(h)]);
        for (int64_t l = j + 1; l <= i; ++l) a *= s.key_valid[static_cast<size_t>(l)] ? decay : 1;
        return a;
      },
      [](Number) { return Number{1}; });
  apply_gated_norm(params.norm(), s, y);
  return y;
}

}  // namespace

Mechanism retention_mechanism() {
  Mechanism facts;
  facts.name = "retention";
  facts.title = "Retention: linear attention in which every head forgets at its own rate";
  facts.equation =
      "y_i = RMSNorm(sum_{j <= i} g_h^(i - j) (scale q_i . k_j) v_j) * silu(x_i W), g_h = 1 - "
      "2^(-5 - h)";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.sources = "Sun et al. 2023, Retentive Network: A Successor to Transformer";
  facts.traits.causal = facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T";
  facts.variants = {"{gate: false, scale: 1}"};
  facts.limits = {{"without decay it is linear attention without a denominator, normalised",
                   "{gate: false, scale: 1}",
                   {Form::causal},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "log_decay") std::fill(values.begin(), values.end(), 0);
                   },
                   [](const ReferenceSequence<double>& s) {
                     std::vector<double> y = linear_attention_definition(
                         s,
                         [&](int64_t h, int64_t i, int64_t j) {
                           return dot_product(s.query(i, h), s.key(j, h), s.K);
                         },
                         [](double) { return 1.0; });
                     apply_gated_norm({false, 1e-6}, s, y);
                     return y;
                   }}};
  return define_mechanism<RetentionParams, RetentionMixer>(
      std::move(facts), [](const auto& params, const auto& s) { return definition(params, s); });
}

}  // namespace linnet
