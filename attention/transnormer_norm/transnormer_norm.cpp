// NormAttention: parameters, mixer, literal definition, registry entry.
#include "attention/transnormer_norm/transnormer_norm.h"

#include "attention/common/lrpe.h"
#include "autograd/arithmetic.h"
#include "autograd/batch_norm.h"

namespace linnet {
namespace {

// In the precision of the statistics: 1e-8 would vanish in bf16.
constexpr double kRmsFloor = 1e-8, kLayerEpsilon = 1e-5;

const std::vector<Preset> kPresets = {
    {"t1", "TransNormer T1: signed elu", {{"activation", "elu"}}},
    {"t2", "TransNormer T2: elu + 1", {}},
    {"survey",
     "the survey's own code: each head divided by its length over sqrt(H K)",
     {{"norm_axis", "head"}, {"gain", "sqrt_heads"}}},
    {"linearized_llm", "Linearized LLM, taken to be T2", {}},
    {"lm_t1",
     "T1 as the authors' language models have it: LRPE with a reflection",
     {{"activation", "elu"}, {"lrpe", "reflected"}}},
    {"lm_t2",
     "T2 as the authors' language models have it: LRPE with a reflection",
     {{"lrpe", "reflected"}}},
    {"lra",
     "the authors' script for Long Range Arena: T2 with BatchNorm and LRPE of fixed frequencies",
     {{"norm", "batch"}, {"lrpe", "fixed"}}},
    {"lra_layer",
     "their configurations of Image, ListOps and Retrieval: the same with LayerNorm",
     {{"norm", "layer"}, {"lrpe", "fixed"}}}};

class TransnormerNormMixer : public AttentionMixer {
 public:
  TransnormerNormMixer(const TransnormerNormParams& params, const MixerOptions& options,
                       const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        gain_(params.gain == "one" ? 1 : std::sqrt(static_cast<double>(options.heads))),
        lrpe_(params.lrpe, options.head_width(), scope.own) {
    attention_.feature_map = lrpe_.used() ? FeatureMap::identity : params.activation;
    attention_.normalizer = Normalizer::none;
    if (params.norm != OutputNorm::batch) return;
    mean_ = scope.own.buffer("norm.mean", {options.width}, init_constant(0), BufferKind::running);
    variance_ =
        scope.own.buffer("norm.variance", {options.width}, init_constant(1), BufferKind::running);
  }

  MixResult mix(const MixInput& given, const MixerContext& context,
                const MixerState& state) const override {
    const MixInput input = lrpe_.used() ? rotated(given, context) : given;
    // There is no denominator: the sum of features is not carried.
    MixerState with_normalizer = state;
    if (!state.empty()) {
      const Tensor& S = state.at("S").value();
      with_normalizer["z"] =
          Variable(Tensor::zeros({S.size(0), S.size(1), S.size(2)}, S.dtype(), S.device()));
    }
    MixResult result = feature_map_mix(attention_, options(), input, {}, context, with_normalizer);
    result.state.erase("z");
    result.y = mean_.defined() ? batch_normalised(result.y, context) : normalised(result.y);
    if (gain_ != 1) result.y = scale(result.y, gain_);
    // LRPE leaves f32.
    result.y = as_dtype(result.y, given.q.dtype());
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t K = options().head_width();
    MixerCost cost = feature_map_cost(options(), K, shape);
    lrpe_.add_cost(options(), shape, cost);
    if (mean_.defined()) {
      cost.bytes += 2 * static_cast<double>(options().width) * size_of(sum_dtype(shape.dtype));
    }
    if (options().form == Form::noncausal) return cost;
    cost.bytes -=
        static_cast<double>(shape.batch * options().width) * size_of(sum_dtype(shape.dtype));
    return cost;
  }

 private:
  // Features with positions instead of queries and keys.
  MixInput rotated(const MixInput& input, const MixerContext& context) const {
    const auto features = [&](const Variable& x, const Tensor& positions) {
      return lrpe_(linear_attention_features(x, params_.activation, 1, context.key_mask), positions,
                   context.key_mask, input.q.dtype());
    };
    MixInput result = input;
    result.q = features(input.q, context.positions);
    result.k = features(
        input.k, context.key_positions.defined() ? context.key_positions : context.positions);
    return result;
  }

  Variable normalised(const Variable& x) const {
    const NormSpec spec = params_.norm == OutputNorm::rms
                              ? NormSpec{NormKind::scale, kRmsFloor}
                              : NormSpec{NormKind::layer, kLayerEpsilon};
    const Shape shape = params_.norm_axis == "head"
                            ? x.shape()
                            : Shape{x.size(0), x.size(1), x.size(2) * x.size(3)};
    return reshape(norm(reshape(x, shape), {}, {}, spec), x.shape());
  }

  Variable batch_normalised(const Variable& x, const MixerContext& context) const {
    const Shape rows{x.size(0) * x.size(1), x.size(2) * x.size(3)};
    const Variable y = batch_norm(reshape(x, rows), context.key_mask,
                                  {mean_.value(), variance_.value()}, context.training);
    return reshape(y, x.shape());
  }

  TransnormerNormParams params_;
  double gain_;
  Lrpe lrpe_;
  LinearAttentionOptions attention_;
  Variable mean_, variance_;  // running, of BatchNorm
};

// `count` elements divided by their root mean square, or normalised to mean 0 and variance 1.
template <typename Number>
void normalise(OutputNorm kind, Number gain, int64_t count, Number* x) {
  Number mean = 0, square = 0;
  for (int64_t c = 0; c < count && kind == OutputNorm::layer; ++c) {
    mean += x[c] / static_cast<Number>(count);
  }
  for (int64_t c = 0; c < count; ++c) {
    square += (x[c] - mean) * (x[c] - mean) / static_cast<Number>(count);
  }
  const Number divisor = kind == OutputNorm::layer
                             ? std::sqrt(square + static_cast<Number>(kLayerEpsilon))
                             : std::max(std::sqrt(square), static_cast<Number>(kRmsFloor));
  for (int64_t c = 0; c < count; ++c) x[c] = gain * (x[c] - mean) / divisor;
}

template <typename Number>
std::vector<Number> definition(const TransnormerNormParams& params,
                               const ReferenceSequence<Number>& s) {
  const auto features = [&](const Number* x, int64_t token) {
    std::vector<Number> f(x, x + s.K);
    for (Number& value : f) value = reference_feature(params.activation, value);
    if (s.form != Form::cross) {
      reference_lrpe(s, params.lrpe, s.positions[static_cast<size_t>(token)], f.data());
    }
    return f;
  };
  std::vector<Number> y = linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        return dot_product(features(s.query(i, h), i).data(), features(s.key(j, h), j).data(), s.K);
      },
      [](Number) { return Number{1}; });
  const int64_t width = params.norm_axis == "head" ? s.V : s.H * s.V;
  const Number gain = params.gain == "one" ? Number{1} : std::sqrt(static_cast<Number>(s.H));
  if (params.norm == OutputNorm::batch) {
    const auto &mean = s.parameter("norm.mean"), &variance = s.parameter("norm.variance");
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t c = i % mean.size();
      y[i] = gain * (y[i] - mean[c]) / std::sqrt(variance[c] + static_cast<Number>(kLayerEpsilon));
    }
    return y;
  }
  for (int64_t at = 0; at < std::ssize(y); at += width) {
    normalise(params.norm, gain, width, &y[static_cast<size_t>(at)]);
  }
  return y;
}

std::vector<LimitingCase> limiting_cases() {
  return {
      {"values of any positive scale give the same",
       "{}",
       {Form::noncausal, Form::causal, Form::cross},
       [](const std::string& name, std::vector<double>& values) {
         if (!name.starts_with("v.")) return;
         for (double& value : values) value *= 3;
       },
       [](const ReferenceSequence<double>& s) {
         ReferenceSequence<double> third = s;
         for (double& value : third.v) value /= 3;
         return definition(TransnormerNormParams(), third);
       }},
      {"running statistics of mean 0 and variance 1 leave the sums as they are",
       "{norm: batch}",
       {Form::noncausal},
       [](const std::string& name, std::vector<double>& values) {
         if (name == "norm.mean") std::fill(values.begin(), values.end(), 0);
         if (name == "norm.variance") std::fill(values.begin(), values.end(), 1 - kLayerEpsilon);
       },
       [](const ReferenceSequence<double>& s) {
         FeatureMapParams<FeatureMap::elu1> params;
         params.normalizer = Normalizer::none;
         return feature_map_definition(params, s);
       }},
      {"frequencies of 0 rotate nothing",
       "{lrpe: learned}",
       {Form::noncausal, Form::causal},
       [](const std::string& name, std::vector<double>& values) {
         if (name == "rates.lrpe") std::fill(values.begin(), values.end(), 0);
       },
       [](const ReferenceSequence<double>& s) { return definition(TransnormerNormParams(), s); }},
      {"with LRPE, shifting all positions changes nothing",
       "{lrpe: fixed}",
       {Form::noncausal, Form::causal},
       {},
       [](const ReferenceSequence<double>& s) {
         ReferenceSequence<double> shifted = s;
         for (int32_t& position : shifted.positions) position += 5;
         TransnormerNormParams params;
         params.lrpe = "fixed";
         return definition(params, shifted);
       }},
      {"sqrt(H) times the norm of each head is a division by its length over sqrt(H K)",
       "{preset: survey}",
       {Form::noncausal, Form::causal, Form::cross},
       {},
       [](const ReferenceSequence<double>& s) {
         TransnormerNormParams params;
         params.norm_axis = "head";
         std::vector<double> y = definition(params, s);
         for (int64_t at = 0; at < std::ssize(y); at += s.V) {
           double* head = &y[static_cast<size_t>(at)];
           const double length = std::sqrt(dot_product(head, head, s.V));
           for (int64_t c = 0; c < s.V; ++c) {
             head[c] *= std::sqrt(static_cast<double>(s.H * s.V)) / length;
           }
         }
         return y;
       }}};
}

}  // namespace

void TransnormerNormParams::describe(ConfigDescription<TransnormerNormParams>& d) {
  describe_preset(d, kPresets);
  d.choice("activation", &TransnormerNormParams::activation,
           {{"elu1", FeatureMap::elu1}, {"elu", FeatureMap::elu}, {"relu", FeatureMap::relu}},
           "the feature map");
  d.choice(
      "norm", &TransnormerNormParams::norm,
      {{"rms", OutputNorm::rms}, {"layer", OutputNorm::layer}, {"batch", OutputNorm::batch}},
      "division by the root mean square, or mean 0 and variance 1, of each token or, with batch, "
      "of each channel over the tokens of the batch (noncausal only)");
  d.choice("norm_axis", &TransnormerNormParams::norm_axis, {"model", "head"},
           "axis of the norm: all heads together, or each head alone");
  d.choice("gain", &TransnormerNormParams::gain, {"one", "sqrt_heads"},
           "constant factor after the norm");
  describe_lrpe(d);
}

void TransnormerNormParams::validate(const ConfigNode& at) const {
  if (norm == OutputNorm::batch && norm_axis == "head") {
    throw located_error(at.location_of("norm_axis"), Cause{ErrorCode::conflict, "norm_axis"},
                        "norm_axis has no effect with norm: batch, which takes every channel by "
                        "itself; remove it");
  }
}

MixerTraits TransnormerNormParams::traits(MixerTraits traits) const {
  traits.couples_heads = norm_axis == "model";
  if (norm == OutputNorm::batch) {
    traits.causal = traits.cross = traits.couples_heads = false;
    traits.decode_state = traits.constant_state = false;
    traits.exempt["repeat"] = "norm: batch: training moves the running statistics";
  }
  // Queries and keys of two sequences have no positions in common.
  if (lrpe != "none") traits.cross = false;
  return traits;
}

Mechanism transnormer_norm_mechanism() {
  Mechanism facts;
  facts.name = "transnormer_norm";
  facts.title = "TransNormer's NormAttention: linear attention without a denominator";
  facts.equation =
      "y_i = XNorm(sum_j (phi(q_i) . phi(k_j)) v_j), phi(x) = elu(x) + 1,\n"
      "XNorm(x) = x / (|x| / sqrt(E)) over the concatenated heads";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K V";
  facts.sources = "Qin et al. 2022, The Devil in Linear Transformer";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = std::string("T");
  facts.presets = kPresets;
  facts.variants = {"{preset: t1, norm: layer}",
                    "{preset: survey}",
                    "{activation: relu, norm_axis: head, norm: layer}",
                    "{preset: lra_layer, lrpe: learned}",
                    "{preset: lra}",
                    "{preset: lra_layer, activation: elu}",
                    "{preset: lm_t1}"};
  facts.limits = limiting_cases();
  return define_mechanism<TransnormerNormParams, TransnormerNormMixer>(
      std::move(facts), [](const TransnormerNormParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
