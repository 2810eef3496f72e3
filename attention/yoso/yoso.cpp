// YOSO: parameters, mixer, literal definition, registry entry.
#include "attention/yoso/yoso.h"

#include <cmath>
#include <numbers>

#include "attention/define.h"
#include "attention/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/norms.h"

namespace linnet {
namespace {

// Least length that a vector is divided by.
constexpr double kFloor = 1e-12;

const std::vector<Preset> kPresets = {
    {"linearized_llm",
     "the only switch that its code has: 8 bits, in expectation",
     {{"bits", "8"}}},
    {"huggingface", "the default of the Transformers library: 9 bits", {{"bits", "9"}}}};

// sqrt(C) x / |x| over the last dimension.
Variable direction(const Variable& x) {
  const double root = std::sqrt(static_cast<double>(x.shape()[-1]));
  return norm(x, {}, {}, {NormKind::scale, kFloor / root});
}

class YosoMixer : public AttentionMixer {
 public:
  YosoMixer(const YosoParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    BlockAttentionContext block = block_context(options(), context);
    block.options.weights = BlockWeights::collision;
    block.options.exponent = static_cast<double>(params_.bits);
    // Directions are sqrt(K) long.
    block.options.scale = 1 / static_cast<double>(options().head_width());
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    MixInput unit = input;
    unit.q = direction(input.q);
    if (input.k.defined()) unit.k = direction(input.k);
    MixResult result;
    if (options().form == Form::causal) {
      result = causal_with_cache(unit, context, state, block, kKeepAll);
    } else if (options().form == Form::noncausal) {
      result.y = block_attention({unit.q, unit.k, unit.v, {}, {}, {}}, block);
    } else {
      result.state = state.empty() ? encoded_source(unit, context) : state;
      block.key_mask = mask_from_state(result.state, "valid");
      const DType dtype = unit.q.dtype();
      result.y = block_attention({unit.q,
                                  as_dtype(result.state.at("k"), dtype),
                                  as_dtype(result.state.at("v"), dtype),
                                  {},
                                  {},
                                  {}},
                                 block);
    }
    const double root = std::sqrt(static_cast<double>(result.y.size(3)));
    result.y = scale(direction(result.y), 1 / root);
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    if (options().form != Form::cross) {
      BlockAttentionOptions all;
      all.causal = options().form == Form::causal;
      return block_attention_cost(options(), all, kKeepAll, shape);
    }
    const auto keys = static_cast<double>(shape.batch * shape.keys * 2 * options().width);
    return {.mixing = static_cast<double>(shape.queries) * keys,
            .bytes = keys * static_cast<double>(size_of(shape.dtype))};
  }

 private:
  YosoParams params_;
};

// sqrt(n) x / |x|.
template <typename Number>
std::vector<Number> direction_of(const ReferenceSequence<Number>& s, const Number* x, int64_t n) {
  const Number length = std::max(std::sqrt(dot_product(x, x, n)), static_cast<Number>(kFloor));
  std::vector<Number> result;
  for (int64_t c = 0; c < n; ++c) {
    result.push_back(s.stored(std::sqrt(static_cast<Number>(n)) * x[c] / length));
  }
  return result;
}

template <typename Number>
std::vector<Number> definition(const YosoParams& params, const ReferenceSequence<Number>& s) {
  std::vector<Number> y;
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      const std::vector<Number> q = direction_of(s, s.query(i, h), s.K);
      std::vector<Number> sum(static_cast<size_t>(s.V), 0);
      for (int64_t j = 0; j < s.S; ++j) {
        if (!s.sees(i, j)) continue;
        const std::vector<Number> k = direction_of(s, s.key(j, h), s.K);
        const Number cosine = std::clamp(
            dot_product(q.data(), k.data(), s.K) / static_cast<Number>(s.K), Number{-1}, Number{1});
        const Number collide = 1 - std::acos(cosine) / static_cast<Number>(std::numbers::pi);
        const Number weight = std::pow(collide, static_cast<Number>(params.bits));
        for (int64_t c = 0; c < s.V; ++c) sum[static_cast<size_t>(c)] += weight * s.value(j, h)[c];
      }
      for (Number& value : sum) value = s.stored(value);
      for (const Number value : direction_of(s, sum.data(), s.V)) {
        y.push_back(value / std::sqrt(static_cast<Number>(s.V)));
      }
    }
  }
  return y;
}

}  // namespace

void YosoParams::describe(ConfigDescription<YosoParams>& d) {
  describe_preset(d, kPresets);
  d.field("bits", &YosoParams::bits, "hyperplanes tau of one hash: the power of the collision")
      .range(1, 64);
  describe_dropout(d);
}

Mechanism yoso_mechanism() {
  Mechanism facts;
  facts.name = "yoso";
  facts.title = "YOSO: attention by the probability that hashes collide, in expectation";
  facts.equation =
      "E_ij = (1 - arccos(cos(q_i, k_j)) / pi)^bits, y_i = sum_j E_ij v_j / |sum_j E_ij v_j|";
  facts.complexity = "time 2 B H T^2 K, memory of decoding 2 B T H K";
  facts.sources = "Zeng et al. 2021, You Only Sample (Almost) Once";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T^2";
  facts.traits.exempt["gradients"] =
      "backward is the paper's surrogate, whose formula a unit test states";
  facts.presets = kPresets;
  facts.variants = {"{bits: 1}"};
  facts.limits = {{"equal directions collide always: the normed sum of the values",
                   "{}",
                   {Form::noncausal, Form::causal, Form::cross},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "q.weight" || name == "k.weight") {
                       std::fill(values.begin(), values.end(), 0);
                     }
                     if (name == "q.bias" || name == "k.bias") {
                       std::fill(values.begin(), values.end(), 0.5);
                     }
                   },
                   [](const ReferenceSequence<double>& s) {
                     std::vector<double> y = linear_attention_definition(
                         s, [](int64_t, int64_t, int64_t) { return 1.0; },
                         [](double) { return 1.0; });
                     for (auto at = y.begin(); at != y.end(); at += s.V) {
                       const double length = std::sqrt(dot_product(&*at, &*at, s.V));
                       std::for_each(at, at + s.V, [length](double& value) { value /= length; });
                     }
                     return y;
                   }}};
  return define_mechanism<YosoParams, YosoMixer>(
      std::move(facts),
      [](const YosoParams& params, const auto& sequence) { return definition(params, sequence); });
}

}  // namespace linnet
