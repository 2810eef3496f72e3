// S4D: parameters, mixer, registry entry.
#include "attention/s4d/s4d.h"

#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "attention/primitives/diagonal_scan/diagonal_scan.h"
#include "attention/s4d/s4d_definition.h"
#include "attention/s4d/s4d_init.h"
#include "autograd/activation.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lavo", "LAVO's language models and summarization (CAB's code)", {{"channels", "8"}}},
    {"lavo_tts", "LAVO's speech synthesis (CAB's code)", {{"channels", "4"}}},
    {"minimal",
     "the released minimal S4D-Lin: every channel its own rates, a gated output",
     {{"shared", "false"}, {"initial", "lin"}, {"b_init", "one"}, {"output", "glu"}}}};

// A map to the model's width, with its bias.
struct Projection {
  Variable weight, bias;
  Variable operator()(const Variable& x, Activation activation = Activation::none) const {
    return linear(x, weight, bias, activation);
  }
};

class S4dMixer : public TokenMixer {
 public:
  S4dMixer(const S4dParams& params, const MixerOptions& options, const MixerScope& scope)
      : params_(params), options_(options), site_(scope.own.prefix()) {
    const int64_t width = options.width, M = params.modes();
    require_usage(width > 0, "s4d: expected a positive width, got ", width);
    require_usage(params.states % 2 == 0, "s4d: states ", params.states,
                  " must be even: modes come with their conjugates");
    require_usage(params.step_min <= params.step_max, "s4d: step_min ", params.step_min,
                  " is above step_max ", params.step_max);
    require_usage(
        options.rotary_width == 0,
        "s4d has no queries and keys to rotate; use positions: sinusoidal, learned or none "
        "instead of rotary");
    const ParameterScope rates = scope.own.child("rates");
    const Shape poles{params.rate_rows(width), M};
    log_step_ = rates.parameter("log_step", {width}, s4d::log_steps(params));
    log_decay_ = rates.parameter("log_decay", poles, s4d::log_decays(params));
    frequency_ = rates.parameter("frequency", poles, s4d::frequencies(params));
    const Shape read_outs{params.channels, width, M, 2};
    c_ = scope.own.parameter("c", read_outs, s4d::read_outs(params));
    if (params.bidirectional) {
      c_later_ = scope.own.parameter("c_later", read_outs, s4d::read_outs(params));
    }
    d_ = scope.own.parameter("d", {params.channels, width}, init_normal(1));
    const auto projection = [&](const std::string& name) {
      const int64_t inputs = params.channels * width;
      Projection made;
      made.weight = scope.own.parameter(name + ".weight", {width, inputs},
                                        projection_init(options.init, 1, inputs, width));
      if (options.bias) made.bias = scope.own.parameter(name + ".bias", {width}, init_constant(0));
      return made;
    };
    out_ = projection(gated() ? "glu_value" : "out");
    if (gated()) gate_ = projection("glu_gate");
  }

  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState& state) const override {
    require(x.shape().rank() == 3 && x.size(2) == options_.width, "s4d: expected x [B, T, ",
            options_.width, "], got ", x.shape());
    DiagonalScanContext at;
    at.discretization =
        params_.discretization == "zoh" ? Discretization::zoh : Discretization::bilinear;
    at.mask = context.key_mask;
    at.segments = context.segments;
    const Variable past = state.empty() ? Variable() : state.at("x");
    const DiagonalScanResult scanned =
        diagonal_scan({x, log_step_, log_decay_, frequency_, c_, d_, past}, at);
    Variable y = scanned.y;
    if (params_.bidirectional) {
      at.later = true;
      y = add(y, diagonal_scan({x, log_step_, log_decay_, frequency_, c_later_, {}, {}}, at).y);
    }
    y = activate(reshape(y, {x.size(0), x.size(1), params_.channels * options_.width}),
                 Activation::gelu);
    if (context.training) {
      y = dropout(
          y, {params_.dropout.value_or(options_.dropout), context.random.at(site_), context.place});
    }
    MixerState after;
    if (options_.form == Form::causal) after["x"] = scanned.state;
    if (!gated()) return {out_(y), y, std::move(after)};
    const Variable gated = multiply(out_(y), gate_(y, Activation::sigmoid));
    return {without_padding(gated, context.key_mask), {}, std::move(after)};
  }

  MixerResult forward_cross(const Variable&, const Variable&, const MixerContext&,
                            const MixerState&) const override {
    throw Error("s4d: there is no cross form");
  }

  MixerCost cost(const MixerShape& shape) const override {
    const auto tokens = static_cast<double>(shape.batch * shape.queries);
    const auto width = static_cast<double>(options_.width);
    const auto channels = static_cast<double>(params_.channels);
    const auto modes = static_cast<double>(params_.modes());
    const double scans = params_.bidirectional ? 2 : 1, maps = gated() ? 2 : 1;
    const auto element = static_cast<double>(size_of(shape.dtype));
    const auto wide = static_cast<double>(size_of(sum_dtype(shape.dtype)));
    MixerCost cost;
    cost.projections = maps * tokens * channels * width * width;
    cost.mixing = tokens * width * (scans * modes * (6 + 2 * channels) + channels);
    const double read_outs = channels * width * (2 * scans * modes + 1);
    const double outputs = maps * width * (channels * width + (options_.bias ? 1 : 0));
    const auto rows = static_cast<double>(params_.rate_rows(options_.width));
    cost.bytes =
        element * (2 * tokens * width + read_outs + outputs) + wide * (width + 2 * rows * modes);
    if (options_.form == Form::causal) {
      cost.bytes += wide * static_cast<double>(shape.batch) * width * modes * 2;
    }
    return cost;
  }

 private:
  bool gated() const { return params_.output == "glu"; }

  // y [B,T,E] with zeros in masked tokens.
  static Variable without_padding(const Variable& y, const Tensor& mask) {
    if (!mask.defined()) return y;
    const Tensor factors = Tensor::full({2, y.size(2)}, 1, y.dtype(), y.value().device());
    factors.rows(0, 1).fill(0);
    return multiply(y, embedding(mask.to(DType::i32), Variable(factors)));
  }

  S4dParams params_;
  MixerOptions options_;
  std::string site_;
  Variable log_step_, log_decay_, frequency_, c_, c_later_, d_;
  Projection out_, gate_;
};

std::vector<LimitingCase> limiting_cases() {
  return {{"a state that is not read leaves the gelu of the skip",
           "{channels: 2, states: 8}",
           {Form::noncausal, Form::causal},
           [](const std::string& name, std::vector<double>& values) {
             if (name == "c") std::fill(values.begin(), values.end(), 0);
           },
           [](const ReferenceSequence<double>& s) {
             std::vector<double> y;
             for (int64_t i = 0; i < s.T * 2 * s.E; ++i) {
               const auto token = i / (2 * s.E), channel = i % (2 * s.E);
               y.push_back(
                   s4d_definition::gelu(s.parameter("d")[static_cast<size_t>(channel)] *
                                        s.x[static_cast<size_t>(token * s.E + channel % s.E)]));
             }
             return y;
           }}};
}

}  // namespace

void S4dParams::describe(ConfigDescription<S4dParams>& d) {
  describe_preset(d, kPresets);
  d.field("states", &S4dParams::states, "size N of a channel's state: N/2 complex modes")
      .range(2, 512);
  d.field("channels", &S4dParams::channels, "outputs c of a channel's state").range(1, 64);
  d.choice("discretization", &S4dParams::discretization, {"zoh", "bilinear"},
           "input held between tokens, or trapezoids");
  d.choice("initial", &S4dParams::initial, {"inv", "lin"}, "first frequencies: S4D-Inv or S4D-Lin");
  d.field("shared", &S4dParams::shared, "all channels have the same decays and frequencies");
  d.choice("b_init", &S4dParams::b_init, {"normal", "one"},
           "initial factor of c: normal values scaled so that 2 sum |B/A|^2 = 1, or 1");
  d.field("step_min", &S4dParams::step_min, "smallest first step").range(1e-8, 10);
  d.field("step_max", &S4dParams::step_max, "largest first step").range(1e-8, 10);
  d.field("bidirectional", &S4dParams::bidirectional,
          "a second kernel over later tokens (noncausal form)");
  d.choice("output", &S4dParams::output, {"linear", "glu"},
           "one map after the gelu, or two of which one gates the other");
  d.field("dropout", &S4dParams::dropout,
          "dropout of the input of the output map; null: the model's "
          "attention_dropout")
      .at_least(0)
      .below(1);
}

MixerTraits S4dParams::traits(MixerTraits traits) const {
  if (bidirectional) {
    traits.causal = traits.decode_state = traits.constant_state = false;
  } else {
    traits.exempt["traits"] =
        "bidirectional: false lets tokens of an encoder read earlier ones alone";
  }
  return traits;
}

Mechanism s4d_mechanism() {
  Mechanism facts;
  facts.name = "s4d";
  facts.title = "S4D: diagonal state space";
  facts.equation =
      "x_t = pole x_{t-1} + gain u_t, v_t = 2 Re sum_n c_n x_t,n + d u_t    each channel u of the "
      "input\n"
      "pole = exp(step A), gain = (pole - 1) / A, A = -exp(log_decay) + i frequency, "
      "step = exp(log_step)\n"
      "y = W gelu(v) + b; output glu: (W gelu(v) + b) sigmoid(W' gelu(v) + b')";
  facts.complexity = "time B T E N (3 + c), memory of decoding B E N";
  facts.sources =
      "Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space Models; "
      "CAB's code (LAVO's baseline)";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.couples_heads = true;
  facts.traits.growth = "T";
  facts.presets = kPresets;
  facts.cost_cases = {"{channels: 8}"};
  facts.variants = {"{preset: minimal, states: 6, discretization: bilinear}",
                    "{states: 4, channels: 3, bidirectional: true}"};
  facts.limits = limiting_cases();
  return define_mechanism<S4dParams, S4dMixer>(
      std::move(facts), [](const S4dParams& params, const auto& sequence) {
        return s4d_definition::definition(params, sequence);
      });
}

}  // namespace linnet
