// Performer: parameters, mixer, literal definition, registry entry.
#include "attention/performer/performer.h"

#include "attention/common/block_diagonal.h"
#include "attention/common/segment_scan.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"
#include "layers/dead_rows.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"survey",
     "the survey: generalised relu, 128 features, never redrawn",
     {{"kernel", "relu"}, {"features", "128"}, {"redraw_steps", "0"}}},
    {"survey_image",
     "the survey's Image and Pathfinder: 64 features",
     {{"kernel", "relu"}, {"features", "64"}, {"redraw_steps", "0"}}},
    {"leapformer",
     "LeaPformer's baseline: never redrawn; its code divides q and k by K^(1/4) twice",
     {{"features", "128"}, {"redraw_steps", "0"}, {"legacy_scale", "true"}}},
    {"lavo",
     "LAVO's baseline: training draws independent rows in every update, for each head",
     {{"features", "64"},
      {"per", "head"},
      {"redrawn", "gaussian"},
      {"redraw_steps", "1"},
      {"floor", "0.1"}}},
    {"lavo_forecast",
     "the same for time series: 16 features",
     {{"features", "16"},
      {"per", "head"},
      {"redrawn", "gaussian"},
      {"redraw_steps", "1"},
      {"floor", "0.1"}}},
    {"linearized_llm",
     "Linearized LLM does not say: FAVOR+ with 256 features",
     {{"features", "256"}, {"redraw_steps", "1000"}}}};

class PerformerMixer : public AttentionMixer {
 public:
  PerformerMixer(const PerformerParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        features_(params.feature_count(options.head_width())),
        epsilon_(params.epsilon(options.form)) {
    const int64_t m = features_, K = options.head_width();
    const int64_t count = params.per == "head" ? options.heads : 1;
    const auto draw = [=](bool gaussian) {
      return [=, length = params.row_length](const RandomKey& key) {
        std::vector<double> all;
        for (int64_t h = 0; h < count; ++h) {
          const RandomKey own = key.at(std::to_string(h));
          const std::vector<double> rows =
              gaussian ? gaussian_rows(m, K, own) : orthogonal_rows(m, K, length, own);
          all.insert(all.end(), rows.begin(), rows.end());
        }
        return all;
      };
    };
    const bool gaussian = params.directions == "gaussian";
    omega_ = RandomMatrix(scope.own, "omega", count == 1 ? Shape{m, K} : Shape{count, m, K},
                          draw(gaussian), draw(gaussian || params.redrawn == "gaussian"),
                          params.redraw_steps);
    attention_.feature_map = FeatureMap::identity;
    attention_.normalizer = params.normalizer;
    attention_.epsilon = params.floor;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const DType dtype = sum_dtype(input.q.dtype());
    const Variable omega = omega_.at(context, draw_key(context), dtype);
    MixInput mapped = input;
    const Projected queries = project(input.q, omega);
    PositiveFeatures how = features(context.key_mask);
    if (stabilized()) {
      how.stabilizers = largest_projections(queries.p.value(), queries.x.value(), rounded());
    }
    mapped.q = positive_features(queries.p, queries.x, how);
    if (DeadRowCount* count = DeadRowCount::current(); count != nullptr && epsilon_ > 0) {
      count->add_features(options().layer, mapped.q.value(), vanished(), context.key_mask);
    }
    MaximumDecay decay;
    if (input.k.defined()) mapped.k = key_features(project(input.k, omega), context, state, decay);
    const Variable log_decay = decay.log_decay.defined() ? Variable(decay.log_decay) : Variable();
    MixResult result =
        feature_map_mix(attention_, options(), mapped, {}, context, state, log_decay);
    if (decay.last.defined()) result.state["c"] = Variable(decay.last);
    result.y = as_dtype(result.y, input.q.dtype());
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t E = options().width, H = options().heads;
    const auto rows = static_cast<double>(shape.batch * (shape.queries + shape.keys));
    const bool heads = params_.per == "head" && H > 1;
    MixerCost cost = feature_map_cost(options(), features_, shape);
    // Where heads have their own, one product has zeros in the other heads' places.
    cost.projections = rows * static_cast<double>(features_ * E * (heads ? H : 1));
    cost.bytes += static_cast<double>(features_ * (heads ? E : options().head_width())) *
                  size_of(sum_dtype(shape.dtype));
    if (options().form == Form::causal && stabilized()) {
      cost.bytes += static_cast<double>(shape.batch * H) * size_of(DType::i64);
    }
    return cost;
  }

 private:
  struct Projected {
    Variable x, p;
  };
  Projected project(const Variable& x, const Variable& omega) const {
    const Variable scaled =
        scale(as_dtype(x, omega.dtype()), params_.scale(options().head_width()));
    return {scaled, omega.shape().rank() == 3 ? head_linear(scaled, omega) : linear(scaled, omega)};
  }

  PositiveFeatures features(const Tensor& mask) const {
    return {params_.kernel, epsilon_, Tensor(), mask};
  }

  // Keys relative to the largest of all, or of those so far: then `decay` rescales the state when
  // the maximum grows.
  Variable key_features(const Projected& keys, const MixerContext& context, const MixerState& state,
                        MaximumDecay& decay) const {
    const bool causal = options().form == Form::causal, cross = options().form == Form::cross;
    PositiveFeatures how = features(cross ? context.source_mask : context.key_mask);
    if (stabilized()) {
      SegmentScan scan;
      scan.kind = ScanKind::max;
      scan.reach = causal ? ScanReach::prefix : ScanReach::whole;
      scan.mask = how.mask;
      if (!cross) scan.segments = context.segments;
      Tensor carried;
      if (causal && !state.empty()) {
        carried = state.at("c").value();
        scan.carried = carried.to(keys.p.dtype());
      }
      how.stabilizers =
          segment_scan(largest_projections(keys.p.value(), keys.x.value(), rounded()), scan);
      if (causal) decay = maximum_decay(how.stabilizers, carried, context.segments);
    }
    return positive_features(keys.p, keys.x, how);
  }

  bool stabilized() const { return params_.kernel == PerformerKernel::exp; }
  // The largest feature of a query that is uniform: each is epsilon, or more than half of it is.
  double vanished() const {
    return stabilized() ? 2 * epsilon_ / std::sqrt(static_cast<double>(features_)) : epsilon_;
  }
  // Without an epsilon stabilisers cancel, so that they may be integers.
  bool rounded() const { return epsilon_ == 0; }

  PerformerParams params_;
  int64_t features_;
  double epsilon_;
  RandomMatrix omega_;
  LinearAttentionOptions attention_;
};

// The projections of one head's vector, and half its squared length.
template <typename Number>
struct Exponents {
  std::vector<Number> p;
  Number half = 0;

  // The stabiliser of this vector.
  Number largest(bool rounded) const {
    const Number most = *std::max_element(p.begin(), p.end());
    return rounded ? std::ceil(most - half) : most;
  }
};

template <typename Number>
Exponents<Number> exponents_of(const PerformerParams& params, const ReferenceSequence<Number>& s,
                               int64_t h, const Number* x) {
  const std::vector<Number>& omega = s.parameter("omega");
  const int64_t m = params.feature_count(s.K);
  const auto scale = static_cast<Number>(params.scale(s.K));
  const int64_t first = params.per == "head" ? h * m : 0;
  Exponents<Number> e;
  for (int64_t r = first; r < first + m; ++r) {
    e.p.push_back(scale * dot_product(&omega[static_cast<size_t>(r * s.K)], x, s.K));
  }
  e.half = scale * scale * dot_product(x, x, s.K) / 2;
  return e;
}

template <typename Number>
std::vector<Number> definition(const PerformerParams& params, const ReferenceSequence<Number>& s) {
  const auto epsilon = static_cast<Number>(params.epsilon(s.form));
  const auto m = static_cast<Number>(params.feature_count(s.K));
  const bool rounded = epsilon == 0;
  std::vector<Exponents<Number>> queries, keys;
  for (int64_t row = 0; row < s.T * s.H; ++row) {
    queries.push_back(exponents_of(params, s, row % s.H, s.query(row / s.H, row % s.H)));
  }
  for (int64_t row = 0; row < s.S * s.H; ++row) {
    keys.push_back(exponents_of(params, s, row % s.H, s.key(row / s.H, row % s.H)));
  }
  // The largest of the keys that query i sees.
  const auto key_stabilizer = [&](int64_t h, int64_t i) {
    Number most = -std::numeric_limits<Number>::infinity();
    for (int64_t j = 0; j < s.S; ++j) {
      if (s.sees(i, j))
        most = std::max(most, keys[static_cast<size_t>(j * s.H + h)].largest(rounded));
    }
    return most;
  };
  std::vector<Number> stabilizers;
  for (int64_t row = 0; row < s.T * s.H; ++row) {
    stabilizers.push_back(key_stabilizer(row % s.H, row / s.H));
  }
  const auto phi = [&](const Exponents<Number>& e, size_t r, Number c) {
    if (params.kernel == PerformerKernel::relu) return std::max(e.p[r], Number{0}) + epsilon;
    return (std::exp(e.p[r] - e.half - c) + epsilon) / std::sqrt(m);
  };
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        const Exponents<Number>&q = queries[static_cast<size_t>(i * s.H + h)],
              &k = keys[static_cast<size_t>(j * s.H + h)];
        Number a = 0;
        for (size_t r = 0; r < q.p.size(); ++r) {
          a += phi(q, r, q.largest(rounded)) *
               phi(k, r, stabilizers[static_cast<size_t>(i * s.H + h)]);
        }
        return a;
      },
      [&](Number x) { return reference_denominator(params.normalizer, params.floor, x); });
}

std::vector<LimitingCase> limiting_cases() {
  return {{"without epsilons stabilisers cancel",
           "{feature_epsilon: 0, floor: 1e-30, features: 10, redraw_steps: 0}",
           {Form::noncausal, Form::causal, Form::cross},
           {},
           [](const ReferenceSequence<double>& s) {
             PerformerParams params;
             params.features = 10;
             return linear_attention_definition(
                 s,
                 [&](int64_t h, int64_t i, int64_t j) {
                   const auto q = exponents_of(params, s, h, s.query(i, h));
                   const auto k = exponents_of(params, s, h, s.key(j, h));
                   double a = 0;
                   for (size_t r = 0; r < 10; ++r) {
                     a += std::exp(q.p[r] + k.p[r] - q.half - k.half);
                   }
                   return a;
                 },
                 [](double x) { return x; });
           }},
          {"equal keys give the mean of the values",
           "{redraw_steps: 0}",
           {Form::noncausal, Form::causal, Form::cross},
           [](const std::string& name, std::vector<double>& values) {
             if (name == "k.weight") std::fill(values.begin(), values.end(), 0);
           },
           [](const ReferenceSequence<double>& s) {
             return linear_attention_definition(
                 s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double x) { return x; });
           }}};
}

}  // namespace

void PerformerParams::describe(ConfigDescription<PerformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("features", &PerformerParams::features, "random features m of each head; null: 2 K")
      .range(1, 4096);
  d.choice("kernel", &PerformerParams::kernel,
           {{"exp", PerformerKernel::exp}, {"relu", PerformerKernel::relu}},
           "features that estimate softmax, or generalised relu");
  d.field("feature_epsilon", &PerformerParams::feature_epsilon,
          "added to every feature (not to exp in the causal form); null: 1e-4, relu 1e-3")
      .at_least(0);
  d.choice("directions", &PerformerParams::directions, {"orthogonal", "gaussian"},
           "rows of the random matrix: orthogonal in blocks of K, or independent");
  d.choice("row_length", &PerformerParams::row_length,
           {{"gaussian", RowLength::gaussian}, {"sqrt", RowLength::constant}},
           "lengths of orthogonal rows: as those of Gaussian vectors, or sqrt(K)");
  d.choice("per", &PerformerParams::per, {"model", "head"},
           "one random matrix for all heads of a layer, or one for each");
  d.choice("redrawn", &PerformerParams::redrawn, {"same", "gaussian"},
           "distribution of redrawn matrices: that of the stored one, or independent rows");
  d.field("redraw_steps", &PerformerParams::redraw_steps,
          "training redraws the matrix after so many updates; 0: never")
      .range(0, 1e9)
      .unit("updates");
  d.field("legacy_scale", &PerformerParams::legacy_scale,
          "divide q and k by sqrt(K) instead of K^(1/4): estimates exp(q . k / K)");
  describe_normalizer(d);
}

MixerTraits PerformerParams::traits(MixerTraits traits) const {
  const bool constants = kernel == PerformerKernel::exp && feature_epsilon.value_or(1) > 0;
  if (constants) {
    traits.exempt["gradients"] =
        "stabilisers are constants for backward, but beside feature_epsilon outputs depend on them "
        "a little; checked with feature_epsilon: 0";
  }
  return traits;
}

double PerformerParams::epsilon(Form form) const {
  if (kernel == PerformerKernel::relu) return feature_epsilon.value_or(1e-3);
  return form == Form::causal ? 0 : feature_epsilon.value_or(1e-4);
}

double PerformerParams::scale(int64_t head_width) const {
  return std::pow(static_cast<double>(head_width), legacy_scale ? -0.5 : -0.25);
}

Mechanism performer_mechanism() {
  Mechanism facts;
  facts.name = "performer";
  facts.title = "Performer: positive orthogonal random features (FAVOR+)";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor), A_ij = phi(q_i) . phi(k_j),\n"
      "phi(x) = (exp(W x' - |x'|^2 / 2 - c) + epsilon) / sqrt(m), x' = x / K^(1/4), W random,\n"
      "c the largest W x' (keys: of all of them; causal: so far)";
  facts.complexity = "time 2 B H T m (K + V), memory of decoding B H (m (V + 1) + 1)";
  facts.sources = "Choromanski et al. 2021, Rethinking Attention with Performers";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T m";
  facts.presets = kPresets;
  facts.variants = {"{feature_epsilon: 0, per: head, redrawn: gaussian, redraw_steps: 1}",
                    "{kernel: relu, features: 40, directions: gaussian, normalizer: add}",
                    "{legacy_scale: true, features: 20, row_length: sqrt, redraw_steps: 2}"};
  facts.limits = limiting_cases();
  return define_mechanism<PerformerParams, PerformerMixer>(
      std::move(facts), [](const PerformerParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
