// ABC_MLP: parameters, mixer, literal definition, registry entry.
#include "attention/abc_mlp/abc_mlp.h"

#include <numbers>

#include "attention/block_diagonal.h"
#include "attention/define.h"
#include "attention/mixer_support.h"
#include "attention/slot_support.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"abc", "language modelling: 64 slots (32 in the smaller setting)", {{"slots", "64"}}},
    {"abc_mlm",
     "masked language modelling: 128 slots (64 in the smaller setting)",
     {{"slots", "128"}}},
    {"abc_footnote",
     "the paper's footnote 5: weights fixed when a token is written",
     {{"causal_normalisation", "write"}}}};

class AbcMlpMixer : public AttentionMixer {
 public:
  AbcMlpMixer(const AbcMlpParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    const int64_t H = options.heads, N = params.slots;
    const bool whole = params.phi_input == "x";
    const Shape shape = whole ? Shape{H * N, options.width} : Shape{H, N, options.head_width()};
    const int64_t fan_in = whole ? options.width : options.head_width();
    const Initializer initial = init_xavier(1 / std::numbers::sqrt2, fan_in, N);
    const std::string name = params.weight_name(options.form);
    phi_ = params.tied ? scope.tied.shared(name, shape, initial)
                       : scope.own.parameter(name, shape, initial);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    SlotMixing mixing;
    mixing.options.control = params_.activation;
    mixing.options.scale = params_.scale.value_or(default_scale(options()));
    mixing.options.mask_empty = params_.mask_empty;
    mixing.options.floor = params_.floor;
    mixing.write_time = params_.causal_normalisation == "write";
    return slot_mix(mixing, options(), input, context, state,
                    [&] { return logits(options().form == Form::cross ? input.source : input.x); });
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t H = options().heads, N = params_.slots;
    MixerCost cost = slot_mix_cost(options(), N, shape);
    // A head's own slice is read by a product that has zeros in the other heads' places.
    cost.projections = static_cast<double>(shape.batch * H * N * shape.keys * options().width);
    const int64_t read = params_.phi_input == "x" ? options().width : options().head_width();
    cost.bytes += static_cast<double>(H * N * read) * size_of(shape.dtype);
    return cost;
  }

 private:
  // x [B,T,E] -> [B,T,H,N].
  Variable logits(const Variable& x) const {
    const Variable weight = params_.phi_input == "x" ? phi_ : block_diagonal(phi_);
    return reshape(linear(x, weight), {x.size(0), x.size(1), options().heads, params_.slots});
  }

  AbcMlpParams params_;
  Variable phi_;
};

template <typename Number>
Number control_of(SlotControl activation, Number logit) {
  switch (activation) {
    case SlotControl::exp:
      return std::exp(logit);
    case SlotControl::sigmoid:
      return 1 / (1 + std::exp(-logit));
    default:
      return std::max(logit, Number{0});
  }
}

// alpha [S,H,N] of every token.
template <typename Number>
std::vector<Number> controls(const AbcMlpParams& params, const ReferenceSequence<Number>& s) {
  const std::vector<Number>& phi = s.parameter(params.weight_name(s.form));
  const std::vector<Number>& from = s.form == Form::cross ? s.source : s.x;
  const bool whole = params.phi_input == "x";
  std::vector<Number> alpha;
  for (int64_t j = 0; j < s.S; ++j) {
    for (int64_t row = 0; row < s.H * params.slots; ++row) {
      const int64_t h = row / params.slots;
      const Number* token = &from[static_cast<size_t>(j * s.E)];
      alpha.push_back(control_of(
          params.activation,
          whole ? dot_product(&phi[static_cast<size_t>(row * s.E)], token, s.E)
                : dot_product(&phi[static_cast<size_t>(row * s.K)], token + h * s.K, s.K)));
    }
  }
  return alpha;
}

template <typename Number>
std::vector<Number> definition(const AbcMlpParams& params, const ReferenceSequence<Number>& s) {
  const std::vector<Number> alpha = controls(params, s);
  SlotDefinition d;
  d.slots = params.slots;
  d.scale = params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K)));
  if (s.form == Form::causal && params.causal_normalisation == "write") {
    d.divisor = SlotDefinition::Divisor::write;
  }
  // exp never needs a floor.
  d.floor = params.activation == SlotControl::exp ? 0 : params.floor;
  d.mask_empty = params.mask_empty;
  return slot_definition(s, d, [&](int64_t j, int64_t h, int64_t l) {
    return alpha[static_cast<size_t>((j * s.H + h) * params.slots + l)];
  });
}

std::vector<LimitingCase> limiting_cases() {
  return {
      {"a control of zeros gives the mean of the values",
       "{slots: 3}",
       {Form::noncausal, Form::causal, Form::cross},
       [](const std::string& name, std::vector<double>& values) {
         if (name.starts_with("phi")) std::fill(values.begin(), values.end(), 0);
       },
       [](const ReferenceSequence<double>& s) {
         return linear_attention_definition(
             s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double x) { return x; });
       }},
      {"one slot gives a soft-max over tokens that no query changes",
       "{slots: 1}",
       {Form::noncausal, Form::causal, Form::cross},
       {},
       [](const ReferenceSequence<double>& s) {
         AbcMlpParams params;
         params.slots = 1;
         const std::vector<double> alpha = controls(params, s);
         return linear_attention_definition(
             s,
             [&](int64_t h, int64_t, int64_t j) { return alpha[static_cast<size_t>(j * s.H + h)]; },
             [](double x) { return x; });
       }}};
}

}  // namespace

void AbcMlpParams::describe(ConfigDescription<AbcMlpParams>& d) {
  describe_preset(d, kPresets);
  d.field("slots", &AbcMlpParams::slots, "memory slots N of each head").range(1, 4096);
  d.choice("causal_normalisation", &AbcMlpParams::causal_normalisation, {"read", "write"},
           "causal weights are divided by the sum up to the reader (means, appendix B.1), or by "
           "the sum up to the writer (footnote 5)");
  d.choice("phi_input", &AbcMlpParams::phi_input, {"x", "head"},
           "the control reads the whole token, or the head's own slice of it");
  d.choice(
      "activation", &AbcMlpParams::activation,
      {{"exp", SlotControl::exp}, {"sigmoid", SlotControl::sigmoid}, {"relu", SlotControl::relu}},
      "of the control");
  d.field("mask_empty", &AbcMlpParams::mask_empty,
          "slots never written are left out; otherwise they are zeros that take soft-max mass");
  d.field("tied", &AbcMlpParams::tied, "one control for all layers of a kind of attention");
  d.field("scale", &AbcMlpParams::scale, "factor of q . k; null: 1/sqrt(K)").above(0);
  d.field("floor", &AbcMlpParams::floor, "least divisor of sigmoid and relu controls").above(0);
}

std::string AbcMlpParams::weight_name(Form form) const {
  if (!tied) return "phi.weight";
  return form == Form::cross ? "phi_cross.weight" : "phi_self.weight";
}

Mechanism abc_mlp_mechanism() {
  Mechanism facts;
  facts.name = "abc_mlp";
  facts.title = "Attention with bounded memory, learned control (ABC_MLP)";
  facts.equation =
      "alpha_jl = exp(phi_l . x_j), K~_l = sum_j alpha_jl k_j / sum_j alpha_jl, V~_l likewise\n"
      "y_i = sum_l softmax_l(scale q_i . K~_l) V~_l  (causal: sums over j <= i)";
  facts.complexity = "time B H T N (2 K + 2 V + E), memory of decoding B H N (K + V + 1)";
  facts.sources = "Peng et al. 2022, ABC: Attention with Bounded-Memory Control";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T N";
  facts.presets = kPresets;
  facts.cost_cases = {"{slots: 256}", "{slots: 256, causal_normalisation: write}"};
  facts.check_head_width = 16;
  facts.variants = {"{slots: 5, causal_normalisation: write, phi_input: head}",
                    "{slots: 7, activation: sigmoid, tied: false, scale: 1}",
                    "{slots: 6, activation: relu, mask_empty: false}",
                    "{slots: 4, activation: relu, causal_normalisation: write}"};
  facts.limits = limiting_cases();
  return define_mechanism<AbcMlpParams, AbcMlpMixer>(
      std::move(facts), [](const AbcMlpParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
