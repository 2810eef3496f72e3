// TransNormer's DiagAttention: parameters, mixer, literal definition, registry entry.
#include "attention/transnormer_diag/transnormer_diag.h"

#include "attention/common/lrpe.h"
#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "autograd/arithmetic.h"
#include "autograd/norms.h"

namespace linnet {
namespace {

// Floor of the root mean square that RMSNorm divides by.
constexpr double kNormFloor = 1e-8;

const std::vector<Preset> kPresets = {
    {"survey",
     "blocks of 128; the code that ran has no 1/sqrt(K)",
     {{"window", "128"}, {"scale", "1"}}},
    {"survey_image",
     "the survey's Image and Pathfinder: blocks of 64",
     {{"window", "64"}, {"scale", "1"}}},
    {"linearized_llm", "the \"linearized LLM\" study: T2 with the defaults", {}},
    {"t1", "the paper's T1: relu and RMSNorm", {{"weights", "relu"}}},
    {"lm_t1",
     "T1 as the authors' language models have it: LRPE with a reflection",
     {{"weights", "relu"}, {"lrpe", "reflected"}}},
    {"lm_t2",
     "T2 as the authors' language models have it: LRPE with a reflection",
     {{"lrpe", "reflected"}}},
    {"lra",
     "the authors' Long Range Arena: T2 with LRPE of fixed frequencies",
     {{"lrpe", "fixed"}}}};

class TransnormerDiagMixer : public AttentionMixer {
 public:
  TransnormerDiagMixer(const TransnormerDiagParams& params, const MixerOptions& options,
                       const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        lrpe_(params.lrpe, options.head_width(), scope.own) {}

  MixResult mix(const MixInput& given, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "transnormer_diag");
    MixInput input = given;
    input.q = lrpe_(given.q, context.positions, context.key_mask, given.q.dtype());
    input.k = lrpe_(given.k, context.positions, context.key_mask, given.k.dtype());
    BlockAttentionContext block = block_context(options(), context);
    block.options = pattern();
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    MixResult result;
    if (options().form == Form::causal) {
      result = causal_with_cache(input, context, state, block, params_.window - 1);
    } else {
      result.y = block_attention({input.q, input.k, input.v, {}, {}, {}}, block);
    }
    if (params_.rectified()) result.y = normalised(result.y);
    return result;
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = block_attention_cost(options(), pattern(), params_.window - 1, shape);
    lrpe_.add_cost(options(), shape, cost);
    return cost;
  }

 private:
  BlockAttentionOptions pattern() const {
    BlockAttentionOptions pattern;
    pattern.pattern = BlockPattern::blocks;
    pattern.causal = options().form == Form::causal;
    pattern.block = params_.window;
    pattern.scale = params_.scale.value_or(default_scale(options()));
    if (params_.rectified()) pattern.weights = BlockWeights::relu;
    return pattern;
  }

  // y / max(rms(y), floor), over all heads of a token or over each.
  Variable normalised(const Variable& y) const {
    const NormSpec spec{NormKind::scale, kNormFloor};
    if (params_.norm_axis == "head") return norm(y, {}, {}, spec);
    const Variable joined = reshape(y, {y.size(0), y.size(1), y.size(2) * y.size(3)});
    return reshape(norm(joined, {}, {}, spec), y.shape());
  }

  TransnormerDiagParams params_;
  Lrpe lrpe_;
};

// relu(scale q k) v inside the block, each `width` elements of it divided by their root mean
// square.
template <typename Number>
std::vector<Number> rectified_definition(const TransnormerDiagParams& params,
                                         const ReferenceSequence<Number>& s, Number scale) {
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t j = 0; j < s.S; ++j) {
        if (!s.sees(i, j) || i / params.window != j / params.window) continue;
        const Number weight =
            std::max(scale * dot_product(s.query(i, h), s.key(j, h), s.K), Number{0});
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] += weight * s.value(j, h)[c];
        }
      }
    }
  }
  const int64_t width = params.norm_axis == "head" ? s.V : s.H * s.V;
  for (auto at = y.begin(); at != y.end(); at += width) {
    const Number squares = dot_product(&*at, &*at, width);
    const Number rms = std::sqrt(squares / static_cast<Number>(width));
    const Number divisor = std::max(rms, static_cast<Number>(kNormFloor));
    for (int64_t c = 0; c < width; ++c) at[c] /= divisor;
  }
  return y;
}

template <typename Number>
std::vector<Number> definition(const TransnormerDiagParams& params,
                               const ReferenceSequence<Number>& given) {
  ReferenceSequence<Number> s = given;
  for (std::vector<Number>* vectors : {&s.q, &s.k}) {
    for (int64_t row = 0; params.lrpe != "none" && row < s.T * s.H; ++row) {
      Number* x = &(*vectors)[static_cast<size_t>(row * s.K)];
      reference_lrpe(s, params.lrpe, s.positions[static_cast<size_t>(row / s.H)], x);
      for (int64_t c = 0; c < s.K; ++c) x[c] = s.stored(x[c]);
    }
  }
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  if (params.rectified()) return rectified_definition(params, s, scale);
  return softmax_attention_reference(
      s, scale, [&](int64_t i, int64_t j) { return i / params.window == j / params.window; },
      [](int64_t, int64_t, int64_t) { return Number{0}; });
}

}  // namespace

void TransnormerDiagParams::describe(ConfigDescription<TransnormerDiagParams>& d) {
  describe_preset(d, kPresets);
  d.field("window", &TransnormerDiagParams::window, "tokens of a block")
      .range(1, 1 << 20)
      .unit("tokens");
  d.choice("weights", &TransnormerDiagParams::weights, {"softmax", "relu"},
           "T2: softmax in the block; T1: relu, and RMSNorm of the result");
  d.choice("norm_axis", &TransnormerDiagParams::norm_axis, {"model", "head"},
           "T1: the norm is over all heads of a token, or over each head");
  describe_lrpe(d);
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  describe_dropout(d);
}

MixerTraits TransnormerDiagParams::traits(MixerTraits traits) const {
  traits.couples_heads = rectified() && norm_axis == "model";
  return traits;
}

Mechanism transnormer_diag_mechanism() {
  Mechanism facts;
  facts.name = "transnormer_diag";
  facts.title = "TransNormer's DiagAttention: attention inside blocks";
  facts.equation =
      "y_i = sum_j softmax_j(scale q_i . k_j) v_j over the block of w tokens that holds i (T2), "
      "or\n"
      "y_i = RMSNorm(sum_j relu(scale q_i . k_j) v_j) (T1)";
  facts.complexity = "time B H T w (K + V), memory of decoding B H w (K + V)";
  facts.sources = "Qin et al. 2022, The Devil in Linear Transformer (TransNormer)";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T w";
  facts.presets = kPresets;
  facts.cost_cases = {"{window: 256}", "{weights: relu, window: 256}"};
  facts.variants = {"{weights: relu, window: 7}",
                    "{weights: relu, norm_axis: head, window: 12, scale: 1}",
                    "{window: 6, scale: 1, lrpe: learned}", "{window: 6, preset: lm_t1}",
                    "{window: 5, preset: lra}"};
  facts.limits = {{"a block that holds everything gives softmax attention",
                   "{window: 64}",
                   {Form::noncausal, Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }},
                  {"a block of one token returns its value",
                   "{window: 1}",
                   {Form::noncausal, Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) { return s.v; }},
                  {"frequencies of 0 rotate nothing",
                   "{window: 7, lrpe: learned}",
                   {Form::noncausal, Form::causal},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "rates.lrpe") std::fill(values.begin(), values.end(), 0);
                   },
                   [](const ReferenceSequence<double>& s) {
                     TransnormerDiagParams params;
                     params.window = 7;
                     return definition(params, s);
                   }}};
  return define_mechanism<TransnormerDiagParams, TransnormerDiagMixer>(
      std::move(facts), [](const TransnormerDiagParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
