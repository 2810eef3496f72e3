// ABC_MLP: parameters, mixer, literal definition, registry entry.
#include "attention/abc_mlp/abc_mlp.h"

#include <numbers>

#include "attention/common/block_diagonal.h"
#include "attention/common/slot_support.h"
#include "attention/define.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "autograd/linear.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"abc", "language modelling: 64 slots (32 in the smaller setting)", {{"slots", "64"}}},
    {"abc_mlm",
     "masked language modelling: 128 slots (64 in the smaller setting)",
     {{"slots", "128"}}},
    {"abc_cross", "translation of sentences, cross-attention: 32 slots", {{"slots", "32"}}},
    {"abc_causal", "translation of sentences, decoder: 8 slots", {{"slots", "8"}}},
    {"abc_cross_document",
     "translation of documents, cross-attention: 128 slots",
     {{"slots", "128"}}},
    {"abc_causal_document", "translation of documents, decoder: 64 slots", {{"slots", "64"}}},
    {"abc_footnote",
     "the paper's footnote 5: weights fixed when a token is written",
     {{"causal_normalisation", "write"}}},
    {"cab",
     "the variant that CAB's code runs in LAVO's tables, its causal sums made right",
     {{"slots", "64"},
      {"phi_input", "key_value"},
      {"tied", "false"},
      {"causal_normalisation", "write"}}},
    {"cab_released",
     "the same with the causal sums as released: a token reads only what it writes itself",
     {{"slots", "64"},
      {"phi_input", "key_value"},
      {"tied", "false"},
      {"causal_normalisation", "write"},
      {"cab_causal_compat", "true"}}}};

class AbcMlpMixer : public AttentionMixer {
 public:
  AbcMlpMixer(const AbcMlpParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    const bool causal = options.form == Form::causal, apart = params.reads_keys_and_values();
    const bool at_write = params.causal_normalisation == "write";
    require_usage(!apart || params.activation == SlotControl::exp,
                  "abc_mlp: phi_input: key_value takes exponential controls; set activation: exp");
    require_usage(!causal || at_write || !apart,
                  "abc_mlp: causal weights of phi_input: key_value are normalised when a token is ",
                  "written; set causal_normalisation: write");
    require_usage(
        !causal || at_write || !params.cab_causal_compat,
        "abc_mlp: cab_causal_compat is about weights that are normalised when a token is ",
        "written; set causal_normalisation: write");
    const int64_t H = options.heads, N = params.slots, K = options.head_width();
    if (apart) {
      phi_ = weight("phi_key", {N, K}, scope);
      value_phi_ = weight("phi_value", {N, K}, scope);
    } else {
      const bool whole = params.phi_input == "x";
      phi_ = weight("phi", whole ? Shape{H * N, options.width} : Shape{H, N, K}, scope);
    }
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const SlotMixing mixing = mixing_of(context);
    if (!params_.reads_keys_and_values()) {
      return slot_mix(mixing, options(), input, context, state, [&] {
        const Variable& read = options().form == Form::cross ? input.source : input.x;
        require_usage(read.defined(),
                      "abc_mlp: its control reads the layer's input, which a run of the core alone "
                      "lacks; give inputs/x, or set phi_input: key_value");
        return logits(read);
      });
    }
    return slot_mix(
        mixing, options(), input, context, state, [&] { return linear(input.k, phi_); },
        [&] { return linear(input.v, value_phi_); });
  }

  TreeMix mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                   const MixerState& state) const override {
    if (on_cuda(input.q.value())) return AttentionMixer::mix_tree(input, nodes, state);
    const SlotMixing mixing = mixing_of(nodes[0].context);
    const Variable y =
        params_.reads_keys_and_values()
            ? slot_mix_tree(
                  mixing, input, nodes, state, [&] { return of_each_row(input.k, phi_); },
                  [&] { return of_each_row(input.v, value_phi_); })
            : slot_mix_tree(mixing, input, nodes, state, [&] { return logits(input.x); });
    return {y, committed(input, nodes, state, Commit::token_by_token)};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t H = options().heads, N = params_.slots, K = options().head_width();
    const auto tokens = static_cast<double>(shape.batch * shape.keys);
    const bool causal = options().form == Form::causal, apart = params_.reads_keys_and_values();
    MixerCost cost = slot_mix_cost(options(), N, shape);
    const double normalizers = static_cast<double>(shape.batch * H * N) * sizeof(double);
    if (causal && params_.cab_causal_compat) {
      cost = {.mixing = tokens * static_cast<double>(H * 2 * (K + N)), .bytes = normalizers};
    }
    if (causal && apart) cost.bytes += normalizers;
    // Elements of the weights, and multiply-adds with them. A head's own slice of x is read by a
    // product that has zeros in the other heads' places.
    const int64_t elements = apart                      ? 2 * N * K
                             : params_.phi_input == "x" ? H * N * options().width
                                                        : H * N * K;
    cost.projections = tokens * static_cast<double>(H * N * (apart ? 2 * K : options().width));
    cost.bytes += static_cast<double>(elements) * size_of(shape.dtype);
    return cost;
  }

 private:
  SlotMixing mixing_of(const MixerContext& context) const {
    SlotMixing mixing = slot_mixing(params_, options(), context, draw_key(context));
    mixing.options.control = params_.activation;
    mixing.options.floor = params_.floor;
    mixing.write_time = params_.causal_normalisation == "write";
    mixing.accumulate = !params_.cab_causal_compat;
    return mixing;
  }
  Variable weight(const std::string& control, const Shape& shape, const MixerScope& scope) const {
    const Initializer initial =
        init_xavier(1 / std::numbers::sqrt2, shape.sizes().back(), params_.slots);
    const std::string name = params_.weight_name(control, options().form);
    return params_.tied ? scope.tied.shared(name, shape, initial)
                        : scope.own.parameter(name, shape, initial);
  }
  // x [B,T,E] -> [B,T,H,N].
  Variable logits(const Variable& x) const {
    const Variable of_heads = params_.phi_input == "x" ? phi_ : block_diagonal(phi_);
    return reshape(linear(x, of_heads), {x.size(0), x.size(1), options().heads, params_.slots});
  }
  // linear() of x [B,...] row by row: with all heads of all rows at once a product may have too
  // many rows for the bits of a step (core/row_products.h).
  static Variable of_each_row(const Variable& x, const Variable& weight) {
    std::vector<Variable> rows;
    for (int64_t b = 0; b < x.size(0); ++b) rows.push_back(linear(slice(x, 0, b, b + 1), weight));
    return concatenate(rows, 0);
  }

  AbcMlpParams params_;
  Variable phi_, value_phi_;
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

// alpha [S,H,N] of every token, by the control of that name.
template <typename Number>
std::vector<Number> controls(const AbcMlpParams& params, const ReferenceSequence<Number>& s,
                             const std::string& control = "phi") {
  const std::vector<Number>& phi = s.parameter(params.weight_name(control, s.form));
  const std::vector<Number>& x = s.form == Form::cross ? s.source : s.x;
  std::vector<Number> alpha;
  for (int64_t j = 0; j < s.S; ++j) {
    for (int64_t row = 0; row < s.H * params.slots; ++row) {
      const int64_t h = row / params.slots;
      // The input of the control, and the row of the weight that it is multiplied with.
      const Number* from = params.phi_input == "x" ? &x[static_cast<size_t>(j * s.E)]
                           : control == "phi"      ? &x[static_cast<size_t>(j * s.E + h * s.K)]
                           : control == "phi_key"  ? s.key(j, h)
                                                   : s.value(j, h);
      const int64_t width = params.phi_input == "x" ? s.E : s.K;
      const int64_t reader = control == "phi" ? row : row % params.slots;
      alpha.push_back(control_of(
          params.activation, dot_product(&phi[static_cast<size_t>(reader * width)], from, width)));
    }
  }
  return alpha;
}

template <typename Number>
std::vector<Number> definition(const AbcMlpParams& params, const ReferenceSequence<Number>& s) {
  SlotDefinition d = slot_definition_of(params, s);
  if (s.form == Form::causal && params.causal_normalisation == "write") {
    d.divisor = SlotDefinition::Divisor::write;
    d.accumulate = !params.cab_causal_compat;
  }
  // exp never needs a floor.
  d.floor = params.activation == SlotControl::exp ? 0 : params.floor;
  const auto written = [&](const std::vector<Number>& alpha) {
    return [&](int64_t j, int64_t h, int64_t l) {
      return alpha[static_cast<size_t>((j * s.H + h) * params.slots + l)];
    };
  };
  const bool apart = params.reads_keys_and_values();
  const std::vector<Number> keys = controls(params, s, apart ? "phi_key" : "phi");
  const std::vector<Number> values = apart ? controls(params, s, "phi_value") : keys;
  return slot_definition(s, d, written(keys), written(values));
}

std::vector<LimitingCase> limiting_cases() {
  return {
      {"a control of zeros gives the mean of the values",
       "{slots: 3}",
       {Form::noncausal, Form::causal, Form::cross},
       [](const std::string& name, std::vector<double>& values) {
         if (name.starts_with("phi")) std::fill(values.begin(), values.end(), 0);
       },
       mean_of_values},
      {"one slot gives a softmax over tokens that no query changes",
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
  d.choice("phi_input", &AbcMlpParams::phi_input, {"x", "head", "key_value"},
           "the control reads the whole token, or the head's own slice of it; or keys and values "
           "have one each, shared by heads, computed from them (CAB's code)");
  d.choice(
      "activation", &AbcMlpParams::activation,
      {{"exp", SlotControl::exp}, {"sigmoid", SlotControl::sigmoid}, {"relu", SlotControl::relu}},
      "of the control");
  describe_slot_read(d, "slots never written");
  d.field("tied", &AbcMlpParams::tied, "one control for all layers of a kind of attention");
  d.field("floor", &AbcMlpParams::floor, "least divisor of sigmoid and relu controls").above(0);
  d.field("cab_causal_compat", &AbcMlpParams::cab_causal_compat,
          "causal, normalised at writing: a token reads only what it writes itself, as CAB's "
          "released code does by mistake; to reproduce its results");
}

std::string AbcMlpParams::weight_name(const std::string& control, Form form) const {
  if (!tied) return control + ".weight";
  return control + (form == Form::cross ? "_cross.weight" : "_self.weight");
}

Mechanism abc_mlp_mechanism() {
  Mechanism facts;
  facts.name = "abc_mlp";
  facts.title = "Attention with bounded memory, learned control (ABC_MLP)";
  facts.equation =
      "alpha_jl = exp(phi_l . x_j), K~_l = sum_j alpha_jl k_j / sum_j alpha_jl, V~_l likewise\n"
      "y_i = sum_l softmax_l(scale q_i . K~_l) V~_l  (causal: sums over j <= i)";
  facts.complexity = "time B H T N (2 K + 2 V + E), memory of decoding B H N (K + V + 1)";
  facts.sources =
      "Peng et al. 2022, ABC: Attention with Bounded-Memory Control; CAB's code (key_value)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T N";
  facts.presets = kPresets;
  facts.cost_cases = {"{slots: 256}", "{slots: 256, causal_normalisation: write}"};
  facts.check_head_width = 10;
  facts.variants = {"{slots: 4, activation: relu, causal_normalisation: write, phi_input: head}",
                    "{slots: 7, activation: sigmoid, tied: false, scale: 1}",
                    "{slots: 6, activation: relu, mask_empty: false}", "{preset: cab, slots: 6}",
                    "{preset: cab_released, slots: 5, tied: true}"};
  facts.limits = limiting_cases();
  return define_mechanism<AbcMlpParams, AbcMlpMixer>(
      std::move(facts), [](const AbcMlpParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
