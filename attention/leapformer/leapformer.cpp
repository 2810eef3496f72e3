// LeaPformer: parameters, mixer, literal definition, registry entry.
#include "attention/leapformer/leapformer.h"

#include <numbers>

#include "attention/common/feature_map_mechanism.h"
#include "attention/common/mixer_support.h"
#include "attention/common/wave_features.h"
#include "attention/define.h"
#include "attention/leapformer/expected_attention.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"
#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lra_small",
     "Long Range Arena, the variant that adds at most 0.2 % of parameters",
     {{"hidden", "2"}}},
    {"lra_large",
     "Long Range Arena, the variant that adds at most 1.5 % of parameters",
     {{"hidden", "16"}}},
    {"lm",
     "language modelling: heads of 64, a quarter hidden, q scaled, denominator at least 0.1",
     {{"downsample", "4"}, {"scale", "null"}, {"floor", "0.1"}}},
    {"simulst",
     "simultaneous speech translation: heads of 32, otherwise as lm; cross-attention trains with "
     "wait 5 (the paper tests 3), 9 source tokens per read",
     {{"downsample", "4"}, {"scale", "null"}, {"floor", "0.1"}, {"wait", "5"}, {"read", "9"}}},
    {"simulst_released",
     "the same with cross-attention trained as in the released code, on fairseq's wait-k",
     {{"downsample", "4"},
      {"scale", "null"},
      {"floor", "0.1"},
      {"wait", "5"},
      {"read", "9"},
      {"training", "expected"}}}};

// LeaP(x) = sigmoid(w2 . relu(W1 x + b1) + b2), shared by all heads.
class Leap {
 public:
  Leap(const LeapformerParams& params, int64_t head_width, const ParameterScope& scope) {
    const int64_t hidden = params.hidden_width(head_width);
    const auto uniform = [](int64_t fan_in) {
      return init_uniform(1 / std::sqrt(static_cast<double>(fan_in)));
    };
    const int64_t read = hidden > 1 ? hidden : head_width;
    if (hidden > 1) {
      hidden_weight_ = scope.parameter("hidden.weight", {hidden, head_width}, uniform(head_width));
      hidden_bias_ = scope.parameter("hidden.bias", {hidden}, uniform(head_width));
    }
    out_weight_ = scope.parameter("out.weight", {1, read}, uniform(read));
    out_bias_ = scope.parameter("out.bias", {1}, uniform(read));
  }
  // Multiply-adds of one vector, and elements of all parameters.
  static int64_t products(int64_t hidden, int64_t width) {
    return hidden > 1 ? hidden * (width + 1) : width;
  }
  static int64_t parameters(int64_t hidden, int64_t width) {
    return hidden > 1 ? hidden * (width + 2) + 1 : width + 1;
  }
  // x [B,T,H,K] -> [B,T,H].
  Variable operator()(const Variable& x) const {
    const Variable hidden =
        hidden_weight_.defined() ? linear(x, hidden_weight_, hidden_bias_, Activation::relu) : x;
    return reshape(linear(hidden, out_weight_, out_bias_, Activation::sigmoid),
                   {x.size(0), x.size(1), x.size(2)});
  }

 private:
  Variable hidden_weight_, hidden_bias_, out_weight_, out_bias_;
};

// Left by training with softmax, which has no decode state.
constexpr const char* kNoSums = "softmax_training";

// Vectors [B,T,H,2K] whose inner products are f . g cos(pi/2 (P - P')), of f [B,T,H,K] and P
// [B,T,H]: every channel of f times the sine and cosine of its angle. In the dtype of f.
Variable rotated_features(const Variable& f, const Variable& proportions) {
  const int64_t B = f.size(0), T = f.size(1), H = f.size(2), K = f.size(3);
  const DType dtype = f.dtype();
  const Variable each(Tensor::full({K, 1}, std::numbers::pi / 2, dtype, f.value().device()));
  const Variable angles = linear(reshape(cast(proportions, dtype), {B, T, H, 1}), each, {});
  const Variable pairs =
      wave_features(reshape(angles, {B, T, H * K, 1}), 1, reshape(f, {B, T, H * K}));
  return reshape(pairs, {B, T, H, 2 * K});
}

class LeapformerMixer : public AttentionMixer {
 public:
  LeapformerMixer(const LeapformerParams& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope),
        raw_(params.input == "raw"),
        softmax_training_(params.training == "softmax"),
        expected_training_(params.training == "expected" && options.form == Form::cross),
        hidden_(params.hidden_width(options.head_width())),
        policy_(params.policy(options.form)),
        leap_q_(params, options.head_width(), scope.own.child("leap_q")),
        leap_k_(params, options.head_width(), scope.own.child("leap_k")) {
    attention_.feature_map = FeatureMap::relu;
    attention_.query_scale = params.scale.value_or(default_scale(options));
    attention_.normalizer = params.normalizer;
    attention_.epsilon = params.floor;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    if (policy_.wait == 0) return read(input, context, state);
    // Queries that see a part of the source need its tokens: sums over the whole source do not
    // serve them.
    const MixerState source = state.empty() ? encoded_source(input, context) : state;
    MixInput arriving = input;
    arriving.k = as_dtype(source.at("k"), input.q.dtype());
    arriving.v = as_dtype(source.at("v"), input.q.dtype());
    MixerContext at = context;
    at.source_mask = mask_from_state(source, "valid");
    return {read(arriving, at, {}).y, source};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t width = options().head_width();
    const int64_t vectors = shape.batch * (shape.queries + shape.keys) * options().heads;
    MixerCost cost =
        policy_.wait > 0 ? waiting_cost(shape) : feature_map_cost(options(), 2 * width, shape);
    cost.projections = static_cast<double>(vectors * Leap::products(hidden_, width));
    cost.bytes += static_cast<double>(2 * Leap::parameters(hidden_, width)) * size_of(shape.dtype);
    return cost;
  }

 private:
  MixResult read(const MixInput& input, const MixerContext& context,
                 const MixerState& state) const {
    Proportions p;
    p.query = leap_q_(raw_ ? input.q : activate(scaled(input.q), Activation::relu));
    if (input.k.defined()) p.key = leap_k_(raw_ ? input.k : activate(input.k, Activation::relu));
    if (softmax_training_) {
      require_usage(context.training ? state.empty() : !state.contains(kNoSums),
                    "leapformer: with training: softmax a sequence cannot continue from a state in "
                    "training; give it whole, or set training: linear");
      if (context.training) return train(input, p, context);
    }
    if (expected_training_ && context.training) return train_expected(input, p, context);
    if (policy_.wait > 0) return {read_arriving(input, p, context), {}};
    return feature_map_mix(attention_, options(), input, p, context, state);
  }

  WaitingQueries waiting_queries(const MixInput& input, const MixerContext& context) const {
    require_counted_positions(context, "leapformer");
    if constexpr (kCuda) {
      // A captured step of generation is one for every query.
      if (!context.training) cuda::refuse_capture("the part of a source that has arrived");
    }
    return {policy_, context.place.time_offset, input.q.size(1), input.k.size(1)};
  }

  Variable read_arriving(const MixInput& input, const Proportions& p,
                         const MixerContext& context) const {
    const WaitingQueries queries = waiting_queries(input, context);
    return queries.read(
        [&] {
          LinearAttentionContext along;
          along.options = attention_;
          along.query_mask = queries.spread(context.key_mask);
          along.key_mask = queries.arrived(context.source_mask);
          return linear_attention_causal(
                     {queries.spread(input.q), queries.arrived(input.k), queries.arrived(input.v),
                      queries.spread(p.query), queries.arrived(p.key)},
                     along)
              .y;
        },
        [&] {
          MixInput later = input;
          later.q = queries.later(input.q);
          MixerContext at = context;
          at.key_mask = queries.later(context.key_mask);
          return feature_map_mix(attention_, options(), later, {queries.later(p.query), p.key}, at,
                                 {})
              .y;
        });
  }

  // Features [B,T,H,2K] whose inner products are the energies A_ij.
  static Variable energy_features(const Variable& x, double factor, const Tensor& mask,
                                  const Variable& proportions) {
    return rotated_features(linear_attention_features(x, FeatureMap::relu, factor, mask),
                            proportions);
  }

  // Expected soft attention over the source, of which each query sees what has arrived.
  MixResult train_expected(const MixInput& input, const Proportions& p,
                           const MixerContext& context) const {
    require_usage(input.k.defined(),
                  "leapformer: with training: expected an encoded source cannot be read again in "
                  "training; give the source, or set training: linear");
    if (policy_.wait > 0) require_counted_positions(context, "leapformer");
    const Tensor &queries = context.key_mask, &source = context.source_mask;
    const Variable q = energy_features(input.q, attention_.query_scale, queries, p.query);
    const Variable k = energy_features(input.k, 1, source, p.key);
    const Variable y = expected_attention(q, k, cast(input.v, q.dtype()),
                                          {policy_, context.place.time_offset, queries, source});
    return {cast(y, input.q.dtype()), {}};
  }

  // The softmax of the energies A_ij over the keys, instead of a division by their sum.
  MixResult train(const MixInput& input, const Proportions& p, const MixerContext& context) const {
    BlockAttentionContext block = block_context(options(), context);
    block.options.scale = 1;
    const bool cross = options().form == Form::cross;
    if (cross) block.key_mask = context.source_mask;
    const Tensor& key_mask = cross ? context.source_mask : context.key_mask;
    const Variable q = energy_features(input.q, attention_.query_scale,
                                       cross ? Tensor() : context.key_mask, p.query);
    const Variable k = energy_features(input.k, 1, key_mask, p.key);
    const Variable v = cast(input.v, q.dtype());
    const Variable y = policy_.wait > 0
                           ? train_arriving(q, k, v, waiting_queries(input, context), block)
                           : block_attention({q, k, v, {}, {}, {}}, block);
    MixResult result{cast(y, input.q.dtype()), {}};
    if (!cross) {
      result.state[kNoSums] =
          Variable(Tensor::full({input.q.size(0)}, 1, DType::i64, y.value().device()));
    }
    return result;
  }

  static Variable train_arriving(const Variable& q, const Variable& k, const Variable& v,
                                 const WaitingQueries& queries,
                                 const BlockAttentionContext& block) {
    return queries.read(
        [&] {
          BlockAttentionContext along = block;
          along.cross = false;
          along.options.causal = true;
          along.query_mask = queries.spread(block.query_mask);
          along.key_mask = queries.arrived(block.key_mask);
          return block_attention(
              {queries.spread(q), queries.arrived(k), queries.arrived(v), {}, {}, {}}, along);
        },
        [&] {
          BlockAttentionContext at = block;
          at.query_mask = queries.later(block.query_mask);
          return block_attention({queries.later(q), k, v, {}, {}, {}}, at);
        });
  }

  MixerCost waiting_cost(const MixerShape& shape) const {
    const WaitingQueries queries(policy_, 0, shape.queries, shape.keys);
    const int64_t later = shape.queries - queries.early();
    MixerShape read = shape;
    read.queries = queries.tokens() + later;
    read.keys = queries.tokens() + (later > 0 ? shape.keys : 0);
    MixerCost cost = full_attention_cost(options(), shape);  // the source is kept
    cost.mixing = feature_map_cost(options(), 2 * options().head_width(), read).mixing;
    return cost;
  }

  Variable scaled(const Variable& q) const {
    return attention_.query_scale == 1 ? q : scale(q, attention_.query_scale);
  }

  bool raw_, softmax_training_, expected_training_;
  int64_t hidden_;
  WaitPolicy policy_;
  Leap leap_q_, leap_k_;
  LinearAttentionOptions attention_;
};

// The literal LeaP of one vector.
template <typename Number>
Number leap_reference(const LeapformerParams& params, const ReferenceSequence<Number>& s,
                      const std::string& name, const Number* x, Number scale) {
  std::vector<Number> read(x, x + s.K);
  if (params.input == "relu") {
    for (Number& value : read) value = std::max(scale * value, Number{0});
  }
  const int64_t hidden = params.hidden_width(s.K);
  if (hidden > 1) {
    const std::vector<Number>& weight = s.parameter(name + ".hidden.weight");
    std::vector<Number> inner = s.parameter(name + ".hidden.bias");
    for (int64_t l = 0; l < hidden; ++l) {
      Number& value = inner[static_cast<size_t>(l)];
      value += dot_product(&weight[static_cast<size_t>(l * s.K)], read.data(), s.K);
      value = std::max(value, Number{0});
    }
    read = inner;
  }
  const Number logit = dot_product(s.parameter(name + ".out.weight").data(), read.data(),
                                   static_cast<int64_t>(read.size())) +
                       s.parameter(name + ".out.bias")[0];
  return 1 / (1 + std::exp(-logit));
}

template <typename Number>
std::vector<Number> definition(const LeapformerParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number a = 0;
        if (j >= params.policy(s.form).seen(s.positions[static_cast<size_t>(i)], s.S)) return a;
        for (int64_t c = 0; c < s.K; ++c) {
          a += std::max(scale * s.query(i, h)[c], Number{0}) * std::max(s.key(j, h)[c], Number{0});
        }
        const Number difference = leap_reference(params, s, "leap_q", s.query(i, h), scale) -
                                  leap_reference(params, s, "leap_k", s.key(j, h), Number{1});
        return a * std::cos(static_cast<Number>(std::numbers::pi / 2) * difference);
      },
      [&](Number x) { return reference_denominator(params.normalizer, params.floor, x); });
}

}  // namespace

void LeapformerParams::describe(ConfigDescription<LeapformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("hidden", &LeapformerParams::hidden,
          "hidden units of each LeaP module; 0: head dimension / downsample; 1: no hidden layer")
      .range(0, 4096);
  d.field("downsample", &LeapformerParams::downsample,
          "factor from head dimension to hidden units, where `hidden` is 0")
      .range(1, 4096);
  d.choice("input", &LeapformerParams::input, {"relu", "raw"},
           "input of LeaP: the feature-mapped q and k (as in the authors' code), or q and k");
  d.choice(
      "training", &LeapformerParams::training, {"linear", "softmax", "expected"},
      "while training: the linear form; the softmax of the re-weighted energies over all keys, "
      "quadratic in the length; or, in the cross form, fairseq's expected soft attention of "
      "these energies (as in the authors' translation code; other forms: linear)");
  describe_scale(d, "factor of q before the feature map; null: 1/sqrt(K)");
  describe_normalizer(d);
  d.field(
       "wait", &LeapformerParams::wait,
       "cross-attention while the source arrives: the query at position i sees its first (wait + "
       "i) read tokens; 0: all of them")
      .range(0, 1 << 20);
  d.field("read", &LeapformerParams::read, "source tokens that arrive for each query, with wait")
      .range(1, 1 << 20)
      .unit("tokens");
}

int64_t LeapformerParams::hidden_width(int64_t head_width) const {
  if (hidden > 0) return hidden;
  require_usage(head_width % downsample == 0, "leapformer: downsample ", downsample,
                " does not divide the head dimension ", head_width);
  return head_width / downsample;
}

Mechanism leapformer_mechanism() {
  Mechanism facts;
  facts.name = "leapformer";
  facts.title = "LeaPformer: linear attention re-weighted by learned proportions";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor),\n"
      "A_ij = relu(scale q_i) . relu(k_j) cos(pi/2 (P_i - P'_j)),\n"
      "P_i = sigmoid(w2 . relu(W1 relu(scale q_i) + b1) + b2), P'_j likewise from k_j;\n"
      "cross, with wait: j < (wait + i) read";
  facts.complexity =
      "time B H T K (4 V + 2 r), memory of decoding 2 B H K (V + 1), with wait 2 B S H K";
  facts.sources =
      "LeaPformer: Enabling Linear Transformers for Autoregressive and Simultaneous "
      "Tasks via Learned Proportions";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = std::string("T");
  facts.presets = kPresets;
  facts.form_options = {
      {"wait", {Form::cross}}, {"read", {Form::cross}}, {"training", {Form::cross}, "expected"}};
  facts.variants = {"{hidden: 1, input: raw}",
                    "{preset: lm, normalizer: add, hidden: 3, wait: 2, read: 3}"};
  facts.limits = {{"LeaP modules of zero output give relu linear attention",
                   "{}",
                   {Form::noncausal, Form::causal, Form::cross},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name.starts_with("leap_") && name.find(".out.") != std::string::npos) {
                       std::fill(values.begin(), values.end(), 0);
                     }
                   },
                   [](const ReferenceSequence<double>& s) {
                     return feature_map_definition(FeatureMapParams<FeatureMap::relu>(), s);
                   }}};
  return define_mechanism<LeapformerParams, LeapformerMixer>(
      std::move(facts), [](const LeapformerParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
