// T2R: parameters, mixer, literal definition, registry entry.
#include "attention/t2r/t2r.h"

#include "attention/common/block_diagonal.h"
#include "attention/common/feature_map_mechanism.h"
#include "autograd/activation.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/linear.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"abc_lm", "ABC's language models and cross-attention: 32 features", {{"features", "32"}}},
    {"abc_mt_causal", "ABC's machine translation, causal attention", {{"features", "4"}}}};

class T2rMixer : public AttentionMixer {
 public:
  T2rMixer(const T2rParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope),
        features_(params.features),
        scale_(params.scale.value_or(default_scale(options))) {
    const int64_t H = options.heads, K = options.head_width();
    const Initializer initial = init_uniform(1 / std::sqrt(static_cast<double>(K)));
    weight_ = scope.own.parameter("feature.weight", {H, features_, K}, initial);
    bias_ = scope.own.parameter("feature.bias", {H * features_}, initial);
    if (params.input_gate) {
      gate_weight_ =
          scope.own.parameter("gate.weight", {H, options.width}, init_xavier(1, options.width, H));
      gate_bias_ = scope.own.parameter("gate.bias", {H}, init_constant(params.gate_bias));
    }
    attention_.feature_map = FeatureMap::identity;  // relu is applied together with the map
    attention_.normalizer = params.normalizer;
    attention_.epsilon = params.floor;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    MixInput mapped = input;
    mapped.q = map(scale(input.q, scale_));
    if (input.k.defined()) mapped.k = map(input.k);
    if (gate_weight_.defined()) {
      require_usage(input.x.defined(),
                    "t2r: input_gate reads the layer's input, which a run of the core alone lacks");
      mapped.k = gated(mapped.k, input.x);
    }
    return feature_map_mix(attention_, options(), mapped, {}, context, state);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t all = options().heads * features_;
    MixerCost cost = feature_map_cost(options(), features_, shape);
    // A head's own slice is mapped by a product that has zeros in the other heads' places.
    cost.projections = static_cast<double>(shape.batch * (shape.queries + shape.keys)) *
                       static_cast<double>(all * options().width);
    cost.bytes += static_cast<double>(all * (options().head_width() + 1)) * size_of(shape.dtype);
    if (gate_weight_.defined()) {
      const int64_t H = options().heads, E = options().width;
      cost.projections += static_cast<double>(shape.batch * shape.keys * H * E);
      cost.bytes += static_cast<double>(H * (E + 1)) * size_of(shape.dtype);
    }
    return cost;
  }

 private:
  Variable map(const Variable& x) const {
    return activate(head_linear(x, weight_, bias_), Activation::relu);
  }
  // Keys' features [B,T,H,k] times the gates of their tokens and heads.
  Variable gated(const Variable& features, const Variable& x) const {
    const DType dtype = sum_dtype(x.dtype());
    const int64_t B = x.size(0), T = x.size(1), H = options().heads;
    const auto sum_typed = [&](const Variable& v) { return as_dtype(v, dtype); };
    const Variable logits = linear(sum_typed(x), sum_typed(gate_weight_), sum_typed(gate_bias_));
    const Variable gates = reshape(sigmoid(logits), {B, T, H, 1});
    return as_dtype(multiply(sum_typed(features), gates), features.dtype());
  }

  int64_t features_;
  double scale_;
  Variable weight_, bias_, gate_weight_, gate_bias_;
  LinearAttentionOptions attention_;
};

template <typename Number>
std::vector<Number> definition(const T2rParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const std::vector<Number>& weight = s.parameter("feature.weight");
  const std::vector<Number>& bias = s.parameter("feature.bias");
  const auto phi = [&](int64_t row, const Number* x, Number factor) {
    Number value = bias[static_cast<size_t>(row)];
    value += factor * dot_product(&weight[static_cast<size_t>(row * s.K)], x, s.K);
    return std::max(value, Number{0});
  };
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number a = 0;
        for (int64_t row = h * params.features; row < (h + 1) * params.features; ++row) {
          a += phi(row, s.query(i, h), scale) * phi(row, s.key(j, h), Number{1});
        }
        if (!params.input_gate) return a;
        const Number logit = dot_product(&s.parameter("gate.weight")[static_cast<size_t>(h * s.E)],
                                         &s.x[static_cast<size_t>(j * s.E)], s.E) +
                             s.parameter("gate.bias")[static_cast<size_t>(h)];
        return a / (1 + std::exp(-logit));
      },
      [&](Number x) { return reference_denominator(params.normalizer, params.floor, x); });
}

// The features of a token directly from the input of the projection of q or k: row r of W_h W, with
// the bias W_h b + b_h. A trained model may be evaluated so, without forming q and k.
std::vector<double> folded_features(const ReferenceSequence<double>& s, const std::string& side,
                                    const double* x, double factor, int64_t rows) {
  const std::vector<double>&weight = s.parameter("feature.weight"),
        &projection = s.parameter(side + ".weight"), &shift = s.parameter(side + ".bias");
  const int64_t of_head = rows / s.H;
  std::vector<double> features = s.parameter("feature.bias");
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> folded(static_cast<size_t>(s.E), 0);
    double bias = 0;
    for (int64_t c = 0; c < s.K; ++c) {
      const int64_t channel = row / of_head * s.K + c;
      const double w = factor * weight[static_cast<size_t>(row * s.K + c)];
      bias += w * shift[static_cast<size_t>(channel)];
      for (int64_t e = 0; e < s.E; ++e) {
        folded[static_cast<size_t>(e)] += w * projection[static_cast<size_t>(channel * s.E + e)];
      }
    }
    double& value = features[static_cast<size_t>(row)];
    value = std::max(value + bias + dot_product(folded.data(), x, s.E), 0.0);
  }
  return features;
}

std::vector<double> folded_attention(const ReferenceSequence<double>& s) {
  const int64_t rows = std::ssize(s.parameter("feature.bias")), of_head = rows / s.H;
  const std::vector<double>& read = s.form == Form::cross ? s.source : s.x;
  std::vector<std::vector<double>> queries, keys;
  for (int64_t i = 0; i < s.T; ++i) {
    queries.push_back(folded_features(s, "q", &s.x[static_cast<size_t>(i * s.E)],
                                      1 / std::sqrt(static_cast<double>(s.K)), rows));
  }
  for (int64_t j = 0; j < s.S; ++j) {
    keys.push_back(folded_features(s, "k", &read[static_cast<size_t>(j * s.E)], 1, rows));
  }
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        return dot_product(&queries[static_cast<size_t>(i)][static_cast<size_t>(h * of_head)],
                           &keys[static_cast<size_t>(j)][static_cast<size_t>(h * of_head)],
                           of_head);
      },
      [](double x) { return std::max(x, 1e-2); });
}

std::vector<LimitingCase> limiting_cases() {
  return {{"features folded into the projections of q and k are the same",
           "{features: 5}",
           {Form::causal, Form::cross},
           {},
           folded_attention},
          {"an identity without bias gives relu linear attention of scaled q",
           "{features: 8}",
           {Form::causal, Form::cross},
           [](const std::string& name, std::vector<double>& values) {
             if (!name.starts_with("feature.")) return;
             for (size_t i = 0; i < values.size(); ++i) {
               const bool diagonal = i / 8 % 8 == i % 8;
               values[i] = name == "feature.weight" && diagonal ? 1 : 0;
             }
           },
           [](const ReferenceSequence<double>& s) {
             FeatureMapParams<FeatureMap::relu> params;
             params.scale.reset();
             params.floor = 1e-2;
             return feature_map_definition(params, s);
           }},
          {"an input gate that is wide open is none",
           "{features: 5, input_gate: true}",
           {Form::causal},
           [](const std::string& name, std::vector<double>& values) {
             if (name == "gate.weight") std::fill(values.begin(), values.end(), 0);
             if (name == "gate.bias") std::fill(values.begin(), values.end(), 50);
           },
           folded_attention}};
}

}  // namespace

void T2rParams::describe(ConfigDescription<T2rParams>& d) {
  describe_preset(d, kPresets);
  d.field("features", &T2rParams::features, "features k of each head").range(1, 4096);
  describe_scale(d, "factor of q before the feature map; null: 1/sqrt(K)");
  describe_normalizer(d);
  d.field("input_gate", &T2rParams::input_gate,
          "a gate of each head, made of the layer's input, multiplies the features of keys (causal "
          "only)");
  d.field("gate_bias", &T2rParams::gate_bias, "initial bias of the gate");
}

MixerTraits T2rParams::traits(MixerTraits traits) const {
  if (input_gate) traits.cross = false;
  return traits;
}

Mechanism t2r_mechanism() {
  Mechanism facts;
  facts.name = "t2r";
  facts.title = "T2R: linear attention with a learned relu feature map";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor), A_ij = phi_h(scale q_i) . phi_h(k_j),\n"
      "phi_h(x) = relu(W_h x + b_h); input gate: A_ij times sigmoid(w_h . x_j + b_h)";
  facts.complexity = "time 2 B H T k (V + E), memory of decoding B H k (V + 1)";
  facts.sources = "Kasai et al. 2021, Finetuning Pretrained Transformers into RNNs; ABC";
  facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T k";
  facts.presets = kPresets;
  facts.cost_cases = {"{features: 128}"};
  facts.variants = {"{features: 12, normalizer: add, scale: 1}",
                    "{features: 6, input_gate: true, gate_bias: 0}"};
  facts.limits = limiting_cases();
  return define_mechanism<T2rParams, T2rMixer>(
      std::move(facts),
      [](const T2rParams& params, const auto& sequence) { return definition(params, sequence); });
}

}  // namespace linnet
