// Random feature attention: parameters, mixer, literal definition, registry entry.
#include "attention/rfa/rfa.h"

#include <numeric>

#include "attention/common/block_diagonal.h"
#include "attention/common/random_matrix.h"
#include "attention/common/wave_features.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"abc_lm", "ABC's language models: a state of 32, read as 16 features", {{"features", "16"}}},
    {"abc_cross", "ABC's translation, cross-attention: a state of 256", {{"features", "128"}}},
    {"abc_causal", "ABC's translation, causal attention: a state of 128", {{"features", "64"}}},
    {"linearized_llm", "Linearized LLM does not say; the code's 64 features", {{"features", "64"}}},
    {"rfa_gate", "RFA-Gate as its paper defines it", {{"gate", "true"}}},
    {"rfa_code",
     "the authors' code: amplitude 0.1, a denominator of at least 1, a pool of 500 projections",
     {{"amplitude", "0.1"}, {"floor", "1"}, {"pool", "500"}}}};

// Matrix number n of the pool that all layers of a run share.
std::vector<double> pooled_rows(int64_t n, int64_t rows, int64_t width, uint64_t seed) {
  return gaussian_rows(rows, width, RandomKey{seed, 0, 0}.at("rfa.pool").at(std::to_string(n)));
}

// Matrices of the heads of a layer in a step; those of all layers are distinct.
std::vector<int64_t> taken_from_pool(int64_t pool, const MixerOptions& options, uint64_t seed,
                                     uint64_t step) {
  const RandomKey key = RandomKey{seed, step, 0}.at("rfa.pool").at(name_of(options.form));
  std::vector<int64_t> indices(static_cast<size_t>(pool));
  std::iota(indices.begin(), indices.end(), 0);
  const int64_t begin = options.layer * options.heads, end = begin + options.heads;
  for (int64_t i = 0; i < end; ++i) {
    const uint64_t later = key.below(static_cast<uint64_t>(i), static_cast<uint64_t>(pool - i));
    std::swap(indices[static_cast<size_t>(i)], indices[static_cast<size_t>(i) + later]);
  }
  return {indices.begin() + begin, indices.begin() + end};
}

class RfaMixer : public AttentionMixer {
 public:
  RfaMixer(const RfaParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    const int64_t H = options.heads, K = options.head_width(), D = params.features;
    require_usage(params.pool == 0 || params.pool >= (options.layer + 1) * H, "rfa: layer ",
                  options.layer, " and those before it need ", (options.layer + 1) * H,
                  " different projections, but the pool has ", params.pool, "; raise pool");
    // The matrices of all heads; draw(h) gives that of head h.
    const auto heads = [H](const auto& draw) {
      return [H, draw](const RandomKey& key) {
        std::vector<double> all;
        for (int64_t h = 0; h < H; ++h) {
          const std::vector<double> rows = draw(h, key);
          all.insert(all.end(), rows.begin(), rows.end());
        }
        return all;
      };
    };
    RandomMatrix::Draw stored = heads([D, K](int64_t h, const RandomKey& key) {
      return gaussian_rows(D, K, key.at(std::to_string(h)));
    });
    RandomMatrix::Draw redrawn = stored;
    if (params.pool > 0) {
      stored =
          heads([D, K](int64_t h, const RandomKey& key) { return pooled_rows(h, D, K, key.seed); });
      redrawn = heads([D, K, pool = params.pool, options](int64_t h, const RandomKey& key) {
        const std::vector<int64_t> taken = taken_from_pool(pool, options, key.seed, key.step);
        return pooled_rows(taken[static_cast<size_t>(h)], D, K, key.seed);
      });
    }
    projection_ =
        RandomMatrix(scope.own, "projection", {H, D, K}, stored, redrawn, params.redraw_steps);
    sigma_ = scope.own.parameter("sigma", {H, K}, init_constant(1));
    if (params.gate) {
      gate_weight_ =
          scope.own.parameter("gate.weight", {H, options.width}, init_xavier(1, options.width, H));
      gate_bias_ = scope.own.parameter("gate.bias", {H}, init_constant(params.gate_bias));
    }
    attention_.feature_map = FeatureMap::identity;
    attention_.normalizer = params.normalizer;
    attention_.epsilon = params.floor_value();
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const DType dtype = sum_dtype(input.q.dtype());
    const Variable projection = projection_.at(context, draw_key(context), dtype);
    const Variable sigma = scale(as_dtype(sigma_, dtype), 1 / params_.temperature);
    const auto features = [&](const Variable& x, const Tensor& mask, const Variable& factor) {
      const Variable directions = scaled_directions(as_dtype(x, dtype), sigma, mask);
      return wave_features(head_linear(directions, projection), params_.amplitude_value(), factor);
    };
    Gate gate;
    if (params_.gate) {
      require_usage(input.x.defined(),
                    "rfa: gate reads the layer's input, which a run of the core alone lacks");
      gate = sigmoid_gate(linear(as_dtype(input.x, dtype), as_dtype(gate_weight_, dtype),
                                 as_dtype(gate_bias_, dtype)));
    }
    MixInput mapped = input;
    mapped.q = features(input.q, context.key_mask, {});
    if (input.k.defined()) {
      const bool cross = options().form == Form::cross;
      mapped.k = features(input.k, cross ? context.source_mask : context.key_mask, gate.closed);
    }
    MixResult result =
        feature_map_mix(attention_, options(), mapped, {}, context, state, gate.log_open);
    result.y = as_dtype(result.y, input.q.dtype());
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t H = options().heads, E = options().width, D = params_.features;
    const auto tokens = static_cast<double>(shape.batch * (shape.queries + shape.keys));
    MixerCost cost = feature_map_cost(options(), 2 * D, shape);
    // A head's own slice is projected by a product that has zeros in the other heads' places.
    cost.projections = tokens * static_cast<double>(H * D * E);
    cost.bytes += static_cast<double>(D * E) * size_of(sum_dtype(shape.dtype)) +
                  static_cast<double>(E) * size_of(shape.dtype);
    if (!params_.gate) return cost;
    cost.projections += static_cast<double>(shape.batch * shape.queries * H * E);
    cost.bytes += static_cast<double>(H * (E + 1)) * size_of(shape.dtype);
    return cost;
  }

 private:
  RfaParams params_;
  RandomMatrix projection_;
  Variable sigma_, gate_weight_, gate_bias_;
  LinearAttentionOptions attention_;
};

// phi of one head's vector.
template <typename Number>
std::vector<Number> features_of(const RfaParams& params, const ReferenceSequence<Number>& s,
                                int64_t h, const Number* x) {
  const std::vector<Number>& projection = s.parameter("projection");
  const std::vector<Number>& sigma = s.parameter("sigma");
  const Number length = std::sqrt(dot_product(x, x, s.K)) + static_cast<Number>(1e-3);
  std::vector<Number> u;
  for (int64_t c = 0; c < s.K; ++c) {
    u.push_back(sigma[static_cast<size_t>(h * s.K + c)] * x[c] /
                (length * static_cast<Number>(params.temperature)));
  }
  const auto a = static_cast<Number>(params.amplitude_value());
  std::vector<Number> sines, cosines;
  for (int64_t r = h * params.features; r < (h + 1) * params.features; ++r) {
    const Number p = dot_product(&projection[static_cast<size_t>(r * s.K)], u.data(), s.K);
    sines.push_back(a * std::sin(p));
    cosines.push_back(a * std::cos(p));
  }
  sines.insert(sines.end(), cosines.begin(), cosines.end());
  return sines;
}

// With a gate a weight is (1 - g_j) times the gates of the valid tokens after j up to i.
template <typename Number>
std::vector<Number> definition(const RfaParams& params, const ReferenceSequence<Number>& s) {
  std::vector<std::vector<Number>> queries, keys;
  std::vector<Number> gates;
  for (int64_t row = 0; row < s.T * s.H; ++row) {
    queries.push_back(features_of(params, s, row % s.H, s.query(row / s.H, row % s.H)));
  }
  for (int64_t row = 0; row < s.S * s.H; ++row) {
    keys.push_back(features_of(params, s, row % s.H, s.key(row / s.H, row % s.H)));
    if (!params.gate) continue;
    const int64_t h = row % s.H;
    const Number logit = dot_product(&s.parameter("gate.weight")[static_cast<size_t>(h * s.E)],
                                     &s.x[static_cast<size_t>(row / s.H * s.E)], s.E) +
                         s.parameter("gate.bias")[static_cast<size_t>(h)];
    gates.push_back(1 / (1 + std::exp(-logit)));
  }
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number a = dot_product(queries[static_cast<size_t>(i * s.H + h)].data(),
                               keys[static_cast<size_t>(j * s.H + h)].data(), 2 * params.features);
        if (!params.gate) return a;
        a *= 1 - gates[static_cast<size_t>(j * s.H + h)];
        for (int64_t l = j + 1; l <= i; ++l) {
          if (s.key_valid[static_cast<size_t>(l)] != 0)
            a *= gates[static_cast<size_t>(l * s.H + h)];
        }
        return a;
      },
      [&](Number x) { return reference_denominator(params.normalizer, params.floor_value(), x); });
}

std::vector<LimitingCase> limiting_cases() {
  return {{"a constant gate c gives weights (1 - c) c^(i - j)",
           "{gate: true, features: 4, redraw_steps: 0}",
           {Form::causal},
           [](const std::string& name, std::vector<double>& values) {
             if (name == "gate.weight") std::fill(values.begin(), values.end(), 0);
             if (name == "gate.bias") std::fill(values.begin(), values.end(), 1.5);
           },
           [](const ReferenceSequence<double>& s) {
             RfaParams params;
             params.features = 4;
             const double c = 1 / (1 + std::exp(-1.5));
             return linear_attention_definition(
                 s,
                 [&](int64_t h, int64_t i, int64_t j) {
                   const auto q = features_of(params, s, h, s.query(i, h));
                   const auto k = features_of(params, s, h, s.key(j, h));
                   return dot_product(q.data(), k.data(), 8) * (1 - c) *
                          std::pow(c, static_cast<double>(i - j));
                 },
                 [](double x) { return std::max(x, 1e-3); });
           }},
          {"equal keys give the mean of the values, whatever the amplitude",
           "{features: 4, amplitude: 0.7, redraw_steps: 0}",
           {Form::noncausal, Form::causal, Form::cross},
           [](const std::string& name, std::vector<double>& values) {
             const bool of_q = name.starts_with("q."), of_k = name.starts_with("k.");
             if (of_q || of_k) {
               std::fill(values.begin(), values.end(), name.ends_with("bias") ? 1.0 : 0.0);
             }
           },
           [](const ReferenceSequence<double>& s) {
             return linear_attention_definition(
                 s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double x) { return x; });
           }}};
}

}  // namespace

void RfaParams::describe(ConfigDescription<RfaParams>& d) {
  describe_preset(d, kPresets);
  d.field("features", &RfaParams::features, "random features D of each head; a state has 2 D rows")
      .range(1, 4096);
  d.field("gate", &RfaParams::gate,
          "a gate of each head, made of the layer's input, between the state and the new token "
          "(causal)");
  d.field("gate_bias", &RfaParams::gate_bias, "initial bias of the gate");
  d.field("amplitude", &RfaParams::amplitude, "factor a of sine and cosine; null: 1/sqrt(D)")
      .above(0);
  d.field("temperature", &RfaParams::temperature, "divisor of the input of the projection")
      .above(0);
  d.field("redraw_steps", &RfaParams::redraw_steps,
          "training redraws the projection after so many updates; 0: never")
      .range(0, 1e9)
      .unit("updates");
  d.field(
       "pool", &RfaParams::pool,
       "training takes its projections from so many, different ones in every layer and head, and "
       "evaluation the first ones in every layer; 0: no pool, all are redrawn")
      .range(0, 1e6)
      .unit("matrices");
  d.field("floor", &RfaParams::floor, "epsilon of the denominator; null: 0.01, with a gate 0.001")
      .above(0);
  d.choice("normalizer", &RfaParams::normalizer,
           {{"clamp", Normalizer::clamp}, {"add", Normalizer::add}},
           "denominator max(x, floor) or x + floor");
}

MixerTraits RfaParams::traits(MixerTraits traits) const {
  if (gate) traits.noncausal = traits.cross = false;
  return traits;
}

double RfaParams::amplitude_value() const {
  return amplitude.value_or(1 / std::sqrt(static_cast<double>(features)));
}

Mechanism rfa_mechanism() {
  Mechanism facts;
  facts.name = "rfa";
  facts.title = "Random feature attention, with or without a gate";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor), A_ij = phi(q_i) . phi(k_j),\n"
      "phi(x) = a [sin(W x'); cos(W x')], x' = sigma * x / (|x| + 1e-3), W random\n"
      "gate: A_ij = (1 - g_j) g_{j+1} ... g_i phi(q_i) . phi(k_j), g_t = sigmoid(w . x_t + b)";
  facts.complexity = "time B H T D (4 V + 2 E), memory of decoding 2 B H D (V + 1)";
  facts.sources = "Peng et al. 2021, Random Feature Attention; ABC; Linearized LLM";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T D";
  facts.presets = kPresets;
  facts.variants = {
      "{gate: true, features: 12}",
      "{features: 20, amplitude: 1, temperature: 2, normalizer: add, floor: 1, pool: 9}"};
  facts.limits = limiting_cases();
  return define_mechanism<RfaParams, RfaMixer>(
      std::move(facts),
      [](const RfaParams& params, const auto& sequence) { return definition(params, sequence); });
}

}  // namespace linnet
