// RoPE linear attention: parameters, mixer, literal definition, registry entry.
#include "attention/rope_linear/rope_linear.h"

#include "attention/common/feature_map_mechanism.h"
#include "attention/common/product_division.h"
#include "attention/common/segment_scan.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"leapformer", "LeaPformer's baseline on Long Range Arena: half of each head rotated", {}},
    {"roformer", "every channel rotated, no scale", {{"rotated", "all"}, {"scale", "1"}}}};

class RopeLinearMixer : public AttentionMixer {
 public:
  RopeLinearMixer(const RopeLinearParams& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        scale_(params.scale.value_or(default_scale(options))),
        rotary_width_(params.rotary_width(options.head_width())) {
    numerators_.feature_map = FeatureMap::identity;
    numerators_.normalizer = Normalizer::none;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const bool causal = options().form == Form::causal;
    const int64_t B = input.q.size(0), T = input.q.size(1), E = options().width;
    const DType dtype = sum_dtype(input.q.dtype());
    const Tensor& key_positions =
        context.key_positions.defined() ? context.key_positions : context.positions;
    const Variable queries =
        linear_attention_features(input.q, FeatureMap::elu1, scale_, context.key_mask);
    const Variable keys = linear_attention_features(input.k, FeatureMap::elu1, 1, context.key_mask);
    MixInput rotated = input;
    rotated.q = rotate(queries, context.positions);
    rotated.k = rotate(keys, key_positions);
    // The state's z sums the features before rotation; the numerators do not use it.
    MixResult result = feature_map_mix(numerators_, options(), rotated, {}, context, state);
    const Variable z = state.empty() ? Variable() : reshape(as_dtype(state.at("z"), dtype), {B, E});
    const RunningSum sums =
        running_sum(reshape(keys, {B, T, E}), z, context.key_mask, context.segments, causal);
    if (causal) result.state["z"] = reshape(sums.last, state_shape(B));
    result.y = as_dtype(divide_by_products(result.y, queries, reshape(sums.sums, queries.shape()),
                                           params_.normalizer, params_.floor, context.key_mask),
                        input.q.dtype());
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    return feature_map_cost(options(), options().head_width(), shape);
  }

 private:
  Variable rotate(const Variable& features, const Tensor& positions) const {
    if (rotary_width_ == 0) return features;
    return rotary(features, positions, rotary_width_, params_.theta);
  }
  Shape state_shape(int64_t rows) const { return {rows, options().heads, options().head_width()}; }

  RopeLinearParams params_;
  double scale_;
  int64_t rotary_width_;
  LinearAttentionOptions numerators_;
};

// A vector's features, the first `width` of them rotated by its position.
template <typename Number>
std::vector<Number> rotated_features(const Number* x, Number scale, int64_t K, int64_t width,
                                     double theta, int64_t position) {
  std::vector<Number> f;
  for (int64_t c = 0; c < K; ++c) f.push_back(reference_feature(FeatureMap::elu1, scale * x[c]));
  for (int64_t c = 0; c < width; c += 2) {
    const Number angle =
        static_cast<Number>(position) *
        std::pow(static_cast<Number>(theta), -static_cast<Number>(c) / static_cast<Number>(width));
    Number &left = f[static_cast<size_t>(c)], &right = f[static_cast<size_t>(c + 1)];
    const Number before = left;
    left = before * std::cos(angle) - right * std::sin(angle);
    right = before * std::sin(angle) + right * std::cos(angle);
  }
  return f;
}

template <typename Number>
std::vector<Number> definition(const RopeLinearParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const int64_t width = params.rotary_width(s.K);
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  // Two sums: with rotated features for the numerator, with plain ones for the denominator.
  const auto weight = [&](int64_t h, int64_t i, int64_t j, int64_t rotated) {
    const auto q = rotated_features(s.query(i, h), scale, s.K, rotated, params.theta,
                                    s.positions[static_cast<size_t>(i)]);
    const auto k = rotated_features(s.key(j, h), Number{1}, s.K, rotated, params.theta,
                                    s.positions[static_cast<size_t>(j)]);
    return dot_product(q.data(), k.data(), s.K);
  };
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      Number* out = &y[static_cast<size_t>((i * s.H + h) * s.V)];
      Number total = 0;
      for (int64_t j = 0; j < s.S; ++j) {
        if (!s.sees(i, j)) continue;
        total += weight(h, i, j, 0);
        const Number a = weight(h, i, j, width);
        for (int64_t c = 0; c < s.V; ++c) out[c] += a * s.value(j, h)[c];
      }
      const Number divisor = reference_denominator(params.normalizer, params.floor, total);
      for (int64_t c = 0; c < s.V; ++c) out[c] /= divisor;
    }
  }
  return y;
}

std::vector<LimitingCase> limiting_cases() {
  return {{"rotating nothing gives linear attention of scaled q",
           "{rotated: none}",
           {Form::noncausal, Form::causal},
           {},
           [](const ReferenceSequence<double>& s) {
             FeatureMapParams<FeatureMap::elu1> params;
             params.scale.reset();
             return feature_map_definition(params, s);
           }},
          {"shifting all positions changes nothing",
           "{}",
           {Form::noncausal, Form::causal},
           {},
           [](const ReferenceSequence<double>& s) {
             ReferenceSequence<double> shifted = s;
             for (int32_t& position : shifted.positions) position += 1000;
             return definition(RopeLinearParams(), shifted);
           }}};
}

}  // namespace

void RopeLinearParams::describe(ConfigDescription<RopeLinearParams>& d) {
  describe_preset(d, kPresets);
  d.choice("rotated", &RopeLinearParams::rotated, {"half", "all", "none"},
           "channels of a head that positions rotate: the first half, all of them, none");
  d.field("theta", &RopeLinearParams::theta, "base of the rotation's wave lengths").above(0);
  describe_scale(d, "factor of q before the feature map; null: 1/sqrt(K)");
  describe_normalizer(d);
}

int64_t RopeLinearParams::rotary_width(int64_t head_width) const {
  const int64_t width = rotated == "none" ? 0 : rotated == "half" ? head_width / 2 : head_width;
  require_usage(width % 2 == 0, "rope_linear: rotating ", width, " channels of a head of ",
                head_width, " leaves one without a partner; use another number of heads");
  return width;
}

Mechanism rope_linear_mechanism() {
  Mechanism facts;
  facts.name = "rope_linear";
  facts.title = "Linear attention with rotary positions in the numerator";
  facts.equation =
      "y_i = sum_j (R_i phi(scale q_i)) . (R_j phi(k_j)) v_j / max(sum_j phi(scale q_i) . "
      "phi(k_j), "
      "floor),\n"
      "phi(x) = elu(x) + 1, R_i rotates pairs of channels by the position i";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.sources = "Su et al. 2021, RoFormer; LeaPformer (a baseline)";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = std::string("T");
  facts.presets = kPresets;
  facts.variants = {"{preset: roformer, normalizer: add, floor: 0.1, theta: 100}"};
  facts.limits = limiting_cases();
  return define_mechanism<RopeLinearParams, RopeLinearMixer>(
      std::move(facts), [](const RopeLinearParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
