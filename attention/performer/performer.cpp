// Performer: parameters, mixer, registry entry.
#include "attention/performer/performer.h"

#include "attention/common/block_diagonal.h"
#include "attention/common/product_division.h"
#include "attention/common/segment_scan.h"
#include "attention/performer/performer_definition.h"
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
     "LeaPformer's baseline, whose code is Skyformer's",
     {{"features", "128"},
      {"redraw_steps", "0"},
      {"legacy_scale", "true"},
      {"key_maximum", "tensor"},
      {"maximum_gradients", "true"},
      {"padding", "counted"}}},
    {"lavo",
     "LAVO's baseline, run with CAB's code: training draws independent rows in every update, for "
     "each head",
     {{"features", "64"},
      {"per", "head"},
      {"redrawn", "gaussian"},
      {"redraw_steps", "1"},
      {"floor", "0.1"},
      {"maximum_gradients", "true"}}},
    {"lavo_forecast",
     "the same for time series: 16 features",
     {{"features", "16"},
      {"per", "head"},
      {"redrawn", "gaussian"},
      {"redraw_steps", "1"},
      {"floor", "0.1"},
      {"maximum_gradients", "true"}}},
    {"linearized_llm",
     "Linearized LLM does not say: FAVOR+ with 256 features",
     {{"features", "256"}, {"redraw_steps", "1000"}}},
    {"cab",
     "CAB's code with its default of 16 features: gradients through the maxima, floor 0.1",
     {{"features", "16"},
      {"per", "head"},
      {"redrawn", "gaussian"},
      {"redraw_steps", "1"},
      {"floor", "0.1"},
      {"maximum_gradients", "true"}}},
    {"skyformer",
     "Skyformer's code: maxima of the whole batch, padding in the denominators",
     {{"features", "128"},
      {"redraw_steps", "0"},
      {"legacy_scale", "true"},
      {"key_maximum", "tensor"},
      {"maximum_gradients", "true"},
      {"padding", "counted"}}},
    {"lucidrains_causal",
     "performer-pytorch's causal form, K ln K features of heads of 64: epsilon 1e-4 beside the "
     "largest of all keys, 1e-6 added to sums; no decode state",
     {{"features", "266"}, {"key_maximum", "sequence"}, {"sum_epsilon", "1.0e-6"}}}};

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
    attention_.normalizer = params.sum_epsilon > 0 ? Normalizer::none : params.normalizer;
    attention_.epsilon = params.floor;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const DType dtype = sum_dtype(input.q.dtype());
    const Variable omega = omega_.at(context, draw_key(context), dtype);
    MixInput mapped = input;
    const Projected queries = project(input.q, omega);
    mapped.q = query_features(queries, context.key_mask);
    if (DeadRowCount* count = DeadRowCount::current(); count != nullptr && epsilon_ > 0) {
      count->add_features(options().layer, mapped.q.value(), vanished(), context.key_mask);
    }
    MixerContext keys = context;
    if (input.k.defined() && params_.padding == PerformerPadding::counted) {
      count_padding(mapped, keys);
    }
    MaximumDecay decay;
    if (input.k.defined()) mapped.k = key_features(project(mapped.k, omega), keys, state, decay);
    const Variable log_decay = decay.log_decay.defined() ? Variable(decay.log_decay) : Variable();
    MixResult result = feature_map_mix(attention_, options(), mapped, {}, keys, state, log_decay);
    if (params_.sum_epsilon > 0) result.y = divide(result.y, mapped, context);
    if (causal() && !params_.has_decode_state()) result.state.clear();
    if (decay.last.defined()) result.state["c"] = Variable(decay.last);
    result.y = as_dtype(result.y, input.q.dtype());
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t E = options().width, H = options().heads;
    const auto rows = static_cast<double>(shape.batch * (shape.queries + shape.keys));
    const bool heads = params_.per == "head" && H > 1;
    MixerCost cost = feature_map_cost(options(), features_, shape);
    if (causal() && !params_.has_decode_state()) cost.bytes = 0;
    // Where heads have their own, one product has zeros in the other heads' places.
    cost.projections = rows * static_cast<double>(features_ * E * (heads ? H : 1));
    cost.bytes += static_cast<double>(features_ * (heads ? E : options().head_width())) *
                  size_of(sum_dtype(shape.dtype));
    if (running()) {
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

  Variable query_features(const Projected& queries, const Tensor& mask) const {
    const MaximumGroups own{MaximumOver::row, mask, Tensor()};
    return stabilized() ? stabilized_features(queries, own) : plain_features(queries, mask);
  }

  // Keys relative to the largest of all, or of the keys so far: then `decay` rescales the state
  // when the maximum grows.
  Variable key_features(const Projected& keys, const MixerContext& context, const MixerState& state,
                        MaximumDecay& decay) const {
    const bool cross = options().form == Form::cross;
    const Tensor& mask = cross ? context.source_mask : context.key_mask;
    const Tensor segments = cross ? Tensor() : context.segments;
    if (!stabilized()) return plain_features(keys, mask);
    if (!running()) {
      const bool all = params_.key_maximum == KeyMaximum::tensor;
      return stabilized_features(
          keys, {all ? MaximumOver::tensor : MaximumOver::sequence, mask, segments});
    }
    SegmentScan scan;
    scan.kind = ScanKind::max;
    scan.mask = mask;
    scan.segments = segments;
    Tensor carried;
    if (!state.empty()) {
      carried = state.at("c").value();
      scan.carried = carried.to(keys.p.dtype());
    }
    PositiveFeatures how = features(mask);
    how.stabilizers = segment_scan(own_maxima(keys), scan);
    decay = maximum_decay(how.stabilizers, carried, segments);
    return positive_features(keys.p, keys.x, how);
  }

  Variable plain_features(const Projected& rows, const Tensor& mask) const {
    return positive_features(rows.p, rows.x, features(mask));
  }
  // Relative to the maxima of groups.
  Variable stabilized_features(const Projected& rows, const MaximumGroups& groups) const {
    PositiveFeatures how = features(groups.mask);
    if (!params_.maximum_gradients) {
      how.stabilizers = group_maxima(own_maxima(rows), groups);
      return positive_features(rows.p, rows.x, how);
    }
    const Tensor& p = rows.p.value();
    how.stabilizers = Tensor::zeros({p.size(0), p.size(1), p.size(2)}, p.dtype(), p.device());
    return positive_features(relative_to_maxima(rows.p, groups), rows.x, how);
  }
  Tensor own_maxima(const Projected& rows) const {
    return largest_projections(rows.p.value(), rows.x.value(), rounded());
  }

  // Padded keys and values become zeros, and are no longer masked: masked queries have no features.
  void count_padding(MixInput& input, MixerContext& context) const {
    Tensor& mask = options().form == Form::cross ? context.source_mask : context.key_mask;
    for (Variable* x : {&input.k, &input.v}) {
      *x = as_dtype(linear_attention_features(*x, FeatureMap::identity, 1, mask), x->dtype());
    }
    mask = Tensor();
  }

  // numerators / D(phi(q) . (sum_epsilon + sums of phi(k) so far)).
  Variable divide(const Variable& numerators, const MixInput& features,
                  const MixerContext& context) const {
    const Shape shape = features.k.shape();
    const Variable rows = reshape(features.k, {shape[0], shape[1], options().heads * features_});
    const Variable sums = running_sum(rows, {}, context.key_mask, context.segments, true).sums;
    const Tensor& values = sums.value();
    const Variable added(
        Tensor::full(values.shape(), params_.sum_epsilon, values.dtype(), values.device()));
    return divide_by_products(numerators, features.q, reshape(add(sums, added), shape),
                              params_.normalizer, params_.floor, context.key_mask);
  }

  bool causal() const { return options().form == Form::causal; }
  bool stabilized() const { return params_.kernel == PerformerKernel::exp; }
  // The largest feature of a query that is uniform: each is epsilon, or more than half of it is.
  double vanished() const {
    return stabilized() ? 2 * epsilon_ / std::sqrt(static_cast<double>(features_)) : epsilon_;
  }
  bool rounded() const { return params_.rounds_maxima(options().form); }
  // Whether maxima are those of the keys so far, and travel in the state.
  bool running() const {
    return causal() && stabilized() && params_.key_maximum == KeyMaximum::seen;
  }

  PerformerParams params_;
  int64_t features_;
  double epsilon_;
  RandomMatrix omega_;
  LinearAttentionOptions attention_;
};

}  // namespace

void PerformerParams::describe(ConfigDescription<PerformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("features", &PerformerParams::features, "random features m of each head; null: 2 K")
      .range(1, 4096);
  d.choice("kernel", &PerformerParams::kernel,
           {{"exp", PerformerKernel::exp}, {"relu", PerformerKernel::relu}},
           "features that estimate softmax, or generalised relu");
  d.field("feature_epsilon", &PerformerParams::feature_epsilon,
          "added to every feature (causal exp: with key_maximum: sequence or tensor only); null: "
          "1e-4, relu 1e-3")
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
  d.field("floor", &PerformerParams::floor,
          "epsilon of the denominator; the default only makes 0 / 0 zero")
      .above(0);
  d.choice("normalizer", &PerformerParams::normalizer,
           {{"clamp", Normalizer::clamp}, {"add", Normalizer::add}},
           "denominator max(x, floor) or x + floor");
  d.field("sum_epsilon", &PerformerParams::sum_epsilon,
          "added to each feature's sum of keys in the denominator (causal only, no decode state)")
      .at_least(0);
  d.choice(
      "key_maximum", &PerformerParams::key_maximum,
      {{"seen", KeyMaximum::seen},
       {"sequence", KeyMaximum::sequence},
       {"tensor", KeyMaximum::tensor}},
      "stabiliser of keys: the largest projection that a query sees, of the whole sequence, or "
      "of the whole batch; in the causal form the last two look ahead");
  d.field("maximum_gradients", &PerformerParams::maximum_gradients,
          "gradients pass through the stabilisers (not of keys so far)");
  d.choice("padding", &PerformerParams::padding,
           {{"ignored", PerformerPadding::ignored}, {"counted", PerformerPadding::counted}},
           "padded keys are left out, or count as zeros in maxima and denominators");
}

void PerformerParams::validate(const ConfigNode& at) const {
  const bool exponential = kernel == PerformerKernel::exp;
  const auto refuse = [&](const char* key, const char* reason) {
    throw located_error(at.location_of(key), Cause{ErrorCode::conflict, key}, key, " ", reason);
  };
  if (!exponential && key_maximum != KeyMaximum::seen) {
    refuse("key_maximum", "has no effect with kernel: relu, which has no stabilisers");
  }
  if (!exponential && maximum_gradients) {
    refuse("maximum_gradients", "has no effect with kernel: relu, which has no stabilisers");
  }
  if (exponential && sum_epsilon > 0 && key_maximum == KeyMaximum::seen) {
    refuse("sum_epsilon", "is relative to the largest of all keys: set key_maximum: sequence");
  }
}

MixerTraits PerformerParams::traits(MixerTraits traits) const {
  const bool constants = kernel == PerformerKernel::exp && !maximum_gradients &&
                         (feature_epsilon.value_or(1) > 0 || sum_epsilon > 0);
  if (constants) {
    traits.exempt["gradients"] =
        "stabilisers are constants for backward, but beside feature_epsilon and sum_epsilon "
        "outputs depend on them a little; checked without these, and with maximum_gradients";
  }
  const bool counted = padding == PerformerPadding::counted;
  if (counted || (maximum_gradients && key_maximum == KeyMaximum::seen)) {
    traits.causal = traits.decode_state = traits.constant_state = false;
  }
  if (counted) traits.depends_on_length = true;
  if (sum_epsilon > 0) traits.noncausal = traits.cross = false;
  if (has_decode_state()) return traits;
  traits.decode_state = traits.constant_state = false;
  if (key_maximum == KeyMaximum::seen) return traits;
  traits.exempt["causality"] =
      "beside feature_epsilon, earlier outputs depend a little on the largest of all keys";
  if (key_maximum == KeyMaximum::tensor) {
    traits.couples_heads = true;
    for (const char* check : {"reference", "f32", "bf16", "rows", "repeat", "packing"}) {
      traits.exempt[check] = "key_maximum: tensor couples the rows of a batch";
    }
  }
  return traits;
}

double PerformerParams::epsilon(Form form) const {
  if (kernel == PerformerKernel::relu) return feature_epsilon.value_or(1e-3);
  const bool running = form == Form::causal && key_maximum == KeyMaximum::seen;
  return running ? 0 : feature_epsilon.value_or(1e-4);
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
  facts.variants = {
      "{feature_epsilon: 0, per: head, redrawn: gaussian, redraw_steps: 1}",
      "{kernel: relu, features: 40, directions: gaussian, normalizer: add}",
      "{legacy_scale: true, features: 20, row_length: sqrt, redraw_steps: 2}",
      "{features: 12, key_maximum: sequence, sum_epsilon: 0.01, maximum_gradients: true}",
      "{features: 10, maximum_gradients: true, feature_epsilon: 0.05}",
      "{features: 12, padding: counted, feature_epsilon: 0}"};
  facts.limits = performer_limits();
  return define_mechanism<PerformerParams, PerformerMixer>(
      std::move(facts), [](const PerformerParams& params, const auto& sequence) {
        return performer_definition(params, sequence);
      });
}

}  // namespace linnet
