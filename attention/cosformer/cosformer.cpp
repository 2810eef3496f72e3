// cosFormer: parameters, mixer, literal definition, registry entry.
#include "attention/cosformer/cosformer.h"

#include <numbers>

#include "attention/common/feature_map_mechanism.h"
#include "attention/common/mixer_support.h"
#include "attention/cosformer/proportions.h"
#include "attention/define.h"
#include "autograd/embedding.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lavo",
     "LAVO's baselines: one length for both sides of cross-attention",
     {{"cross_length", "common"}}},
    {"survey", "the survey's text tasks: relu, no scale, 1e-6", {{"cross_length", "common"}}},
    {"survey_image", "the survey's image profiling configuration", {{"activation", "elu1"}}},
    {"leapformer_lra", "LeaPformer's Long Range Arena: no scale, the padded length", {}},
    {"leapformer",
     "LeaPformer's fairseq tree: q scaled, denominator at least 0.1",
     {{"scale", "null"}, {"floor", "0.1"}, {"cross_length", "own"}}}};

class CosformerMixer : public AttentionMixer {
 public:
  CosformerMixer(const CosformerParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    require_usage(
        params.max_length > 0 || options.form == Form::noncausal || options.max_length > 0,
        "cosformer: the ", name_of(options.form), " form needs a length; set max_length");
    attention_.feature_map = params.activation;
    attention_.query_scale = params.scale.value_or(default_scale(options));
    attention_.normalizer = params.normalizer;
    attention_.epsilon = params.floor;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const bool cross = options().form == Form::cross, encoded = cross && !state.empty();
    const int64_t rows = input.q.size(0), key_heads = options().key_heads();
    int64_t keys = encoded ? 0 : input.k.size(1);
    if (encoded && keeps_source_length()) {
      keys = state.at("source_length").value().to_vector<int64_t>()[0];
    }
    const auto length = params_.lengths(options(), input.q.size(1), keys);
    const bool clamp = params_.beyond_max == "clamp";
    const auto at = [&](const Tensor& positions, int64_t heads, int64_t of) {
      return Variable(position_proportions(positions, heads, of, clamp));
    };
    Proportions p;
    p.query = at(context.positions, options().heads, length.queries);
    if (!encoded && (cross || context.key_positions.defined())) {
      p.key = at(context.key_positions.defined()
                     ? context.key_positions
                     : counted_positions(rows, keys, 0, input.q.value().device()),
                 key_heads, length.keys);
    } else if (!cross) {
      p.key =
          key_heads == options().heads ? p.query : at(context.positions, key_heads, length.queries);
    }
    MixResult result = feature_map_mix(attention_, options(), input, p, context, state);
    if (keeps_source_length()) {
      result.state["source_length"] = Variable(
          Tensor::full({rows}, static_cast<double>(keys), DType::i64, input.q.value().device()));
    }
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = feature_map_cost(options(), 2 * options().head_width(), shape);
    if (keeps_source_length()) cost.bytes += static_cast<double>(shape.batch) * sizeof(int64_t);
    return cost;
  }

  int64_t length_limit() const override {
    if (params_.beyond_max == "clamp") return 0;
    return params_.lengths(options(), 0, 0).queries;
  }

 private:
  // Later queries of an encoded source need the length that both sides were divided by.
  bool keeps_source_length() const {
    return options().form == Form::cross && params_.max_length == 0 &&
           params_.cross_length == "common";
  }

  CosformerParams params_;
  LinearAttentionOptions attention_;
};

template <typename Number>
std::vector<Number> definition(const CosformerParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const auto phi = [&](Number x) { return reference_feature(params.activation, x); };
  const auto length = params.lengths(s.options, s.padded_length, s.padded_source_length);
  const auto proportion = [](int64_t position, int64_t of) {
    return std::min(static_cast<Number>(position) / static_cast<Number>(of), Number{1});
  };
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number a = 0;
        for (int64_t c = 0; c < s.K; ++c) a += phi(scale * s.query(i, h)[c]) * phi(s.key(j, h)[c]);
        const Number here = proportion(s.positions[static_cast<size_t>(i)], length.queries);
        const int64_t key_position =
            s.form == Form::cross ? j : s.positions[static_cast<size_t>(j)];
        return a * std::cos(static_cast<Number>(std::numbers::pi / 2) *
                            (here - proportion(key_position, length.keys)));
      },
      [&](Number x) { return reference_denominator(params.normalizer, params.floor, x); });
}

}  // namespace

void CosformerParams::describe(ConfigDescription<CosformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("max_length", &CosformerParams::max_length,
          "divisor M of positions; 0: the training context, in the noncausal form "
          "the padded length of the batch")
      .range(0, 1e9)
      .unit("tokens");
  d.choice("beyond_max", &CosformerParams::beyond_max, {"refuse", "clamp"},
           "positions past M are refused, or count as M");
  d.choice("cross_length", &CosformerParams::cross_length, {"own", "common"},
           "cross-attention divides queries by M and keys by the source's length, or both by the "
           "larger of the two");
  d.choice("activation", &CosformerParams::activation,
           {{"relu", FeatureMap::relu}, {"elu1", FeatureMap::elu1}}, "the feature map");
  describe_scale(d, "factor of q before the feature map; null: 1/sqrt(K)");
  describe_normalizer(d);
}

MixerTraits CosformerParams::traits(MixerTraits traits) const {
  traits.depends_on_length = max_length == 0;
  return traits;
}

CosformerParams::Lengths CosformerParams::lengths(const MixerOptions& options, int64_t query_count,
                                                  int64_t key_count) const {
  // Queries may arrive one by one: only the noncausal form sees all of them.
  const int64_t length = max_length > 0                    ? max_length
                         : options.form == Form::noncausal ? query_count
                                                           : options.max_length;
  if (options.form != Form::cross) return {length, length};
  if (cross_length == "own") return {length, key_count};
  const int64_t common = max_length > 0 ? max_length : std::max(length, key_count);
  return {common, common};
}

Mechanism cosformer_mechanism() {
  Mechanism facts;
  facts.name = "cosformer";
  facts.title = "cosFormer: linear attention re-weighted by the cosine of distance";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor),\n"
      "A_ij = relu(scale q_i) . relu(k_j) cos(pi/2 (i - j) / M)";
  facts.complexity = "time 4 B H T K V, memory of decoding 2 B H K (V + 1)";
  facts.sources = "Qin et al. 2022, cosFormer";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.grouped_queries = true;
  facts.traits.growth = std::string("T");
  facts.presets = kPresets;
  facts.form_options = {{"cross_length", {Form::cross}}};
  facts.variants = {"{max_length: 140, activation: elu1, scale: null, normalizer: add}",
                    "{max_length: 24, beyond_max: clamp, cross_length: common, floor: 0.1}",
                    "{cross_length: common}"};
  facts.limits = {{"a huge M gives relu linear attention",
                   "{max_length: 1000000000}",
                   {Form::noncausal, Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return feature_map_definition(FeatureMapParams<FeatureMap::relu>(), s);
                   }}};
  return define_mechanism<CosformerParams, CosformerMixer>(
      std::move(facts), [](const CosformerParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
