// FLASH: parameters, mixer, literal definition, registry entry.
#include "attention/flash/flash.h"

#include "attention/common/conv_branch.h"
#include "attention/common/tree_support.h"
#include "attention/define.h"
#include "attention/flash/gated_unit_reference.h"
#include "autograd/arithmetic.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"paper",
     "rotary positions on all channels, a bias for each distance, and the mean over earlier "
     "groups, as in its pseudo-code",
     {{"rope", "whole"}, {"bias", "toeplitz"}, {"mean", "true"}}},
    {"lucidrains", "FLASH-pytorch: 32 buckets, the sum over earlier groups", {{"bias", "t5"}}},
    {"linearized_llm",
     "as its FLASH-110M trains: groups of 256, the Laplace weights, token shift",
     {{"group", "256"}, {"weights", "laplace"}, {"token_shift", "true"}}},
    {"linearized_llm_augmented",
     "the same with a masked convolution of the values, 63 taps: its augmented FLASH",
     {{"group", "256"}, {"weights", "laplace"}, {"token_shift", "true"}, {"conv", "63"}}}};

// The convolution takes the values as one head.
MixerOptions one_head_of_values(const FlashParams& params, MixerOptions options) {
  options.width = params.value_width(options);
  options.heads = 1;
  return options;
}

// Without a local part there is no bias.
FlashParams declared(FlashParams params) {
  if (!params.has_local()) params.bias = "none";
  return params;
}

class FlashMixer : public TokenMixer {
 public:
  FlashMixer(const FlashParams& params, const MixerOptions& options, const MixerScope& scope)
      : FlashMixer("flash", params, options, scope) {}
  FlashMixer(const char* mechanism, const FlashParams& params, const MixerOptions& options,
             const MixerScope& scope)
      : mechanism_(mechanism),
        params_(params),
        unit_(mechanism, declared(params), options, scope, params.copies(), params.group) {
    if (params.conv > 0) {
      conv_.emplace(params.conv, params.conv_init, one_head_of_values(params, options), scope.own);
    }
  }

  bool replaces_feed_forward() const override { return true; }

  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState& state) const override {
    refuse_key_positions(context, mechanism_);
    if (x.size(1) == 0) return nothing_mixed(x, state);
    const GatedUnit::Parts parts = unit_.project(x, context, state);
    MixerState after;
    Variable y;
    if (params_.has_local()) y = local(parts, x, context, state, after);
    if (params_.has_global()) {
      const Variable sum = global(parts, context, state, after);
      y = y.defined() ? add(y, sum) : sum;
    }
    if (conv_) {
      AttentionMixer::MixResult convolved = conv_->mix(parts.values, context, state);
      y = add(y, convolved.y);
      after.merge(convolved.state);
    }
    return unit_.finish(parts, y, std::move(after));
  }

  TreeMix forward_tree(const Variable& x, const Tensor& positions, std::span<MixerNode> nodes,
                       const MixerState& state, TreeStates states) const override {
    if (states == TreeStates::copied || on_cuda(x.value())) {
      return TokenMixer::forward_tree(x, positions, nodes, state, states);
    }
    GatedUnit::TreeParts unit = unit_.project_tree(x, positions, nodes, state);
    const GatedUnit::Parts& parts = unit.parts;
    std::vector<TreeMix> sums;
    if (params_.has_local()) sums.push_back(local_tree(parts, nodes, state));
    if (params_.has_global()) {
      sums.push_back(tree_of_groups(global_input(parts), nodes, state, prefix(1)));
    }
    if (conv_) sums.push_back(conv_->tree(parts.values, nodes, state));
    Variable y = sums[0].y;
    for (size_t i = 1; i < sums.size(); ++i) y = add(y, sums[i].y);
    if (unit.shifted.state_after) sums.push_back(std::move(unit.shifted));
    return with_states(unit_.finish(parts, y, {}).y, std::move(sums));
  }

  MixerResult forward_cross(const Variable&, const Variable&, const MixerContext&,
                            const MixerState&) const override {
    throw Error(concat(mechanism_, ": the cross form is not defined"));
  }

  MixerCost cost(const MixerShape& shape) const override {
    const auto rows = static_cast<double>(shape.batch), T = static_cast<double>(shape.queries);
    const auto s = static_cast<double>(params_.key_width);
    const auto e = static_cast<double>(params_.value_width(unit_.options()));
    MixerCost cost = unit_.cost(shape);
    if (params_.has_local()) {
      cost.mixing += rows * visible_pairs(pattern(), shape.queries) * (s + e);
    }
    if (params_.has_global()) cost.mixing += rows * T * 2 * s * e;
    if (conv_) {
      const MixerCost convolved = conv_->cost(shape);
      cost.mixing += convolved.mixing;
      cost.bytes += convolved.bytes;
    }
    if (!causal()) return cost;
    if (params_.has_local()) {
      const auto kept = static_cast<double>(std::min(params_.group - 1, shape.queries));
      const auto element = static_cast<double>(size_of(shape.dtype));
      cost.bytes += rows * kept * ((s + e) * element + sizeof(int64_t));
    }
    if (params_.has_global()) {
      cost.bytes +=
          prefix_bytes(rows, params_.key_width, params_.value_width(unit_.options()), shape.dtype);
    }
    return cost;
  }

 private:
  bool causal() const { return unit_.options().form == Form::causal; }

  BlockAttentionOptions pattern() const {
    BlockAttentionOptions pattern;
    pattern.pattern = BlockPattern::blocks;
    pattern.causal = causal();
    pattern.block = params_.group;
    pattern.scale = 1 / static_cast<double>(params_.group);
    pattern.weights = params_.weights;
    return pattern;
  }

  Variable local(const GatedUnit::Parts& parts, const Variable& x, const MixerContext& context,
                 const MixerState& state, MixerState& after) const {
    const MixerOptions& options = unit_.options();
    BlockAttentionContext block = block_context(options, context);
    block.options = pattern();
    set_dropout(block, params_.dropout, options, context, unit_.draw_key(context));
    const auto past = state.find("k");
    const int64_t before = past == state.end() ? 0 : past->second.size(1);
    const GatedUnit::Bias bias = unit_.bias(before, x.size(1), 1, x.value().device());
    block.bias_origin = bias.origin;
    const MixInput input{parts.copies[0], parts.copies[1], parts.values, {}, {}};
    if (!causal()) return block_attention({input.q, input.k, input.v, {}, {}, bias.table}, block);
    AttentionMixer::MixResult mixed =
        causal_with_cache(input, context, state, block, params_.group - 1, bias.table);
    after.merge(mixed.state);
    return mixed.y;
  }

  Variable global(const GatedUnit::Parts& parts, const MixerContext& context,
                  const MixerState& state, MixerState& after) const {
    const MixInput input = global_input(parts);
    return prefix_of_groups(input.q, input.k, input.v, prefix(parts.values.size(1)), context, state,
                            after);
  }

  // The sums over groups, of T tokens.
  GroupPrefixOptions prefix(int64_t T) const {
    GroupPrefixOptions options;
    options.group = params_.group;
    options.whole = !causal();
    options.mean = params_.mean;
    options.scale = 1 / (causal() ? static_cast<double>(params_.group) : unit_.divisor(T));
    return options;
  }
  MixInput global_input(const GatedUnit::Parts& parts) const {
    const size_t query = params_.global_copies();
    return {parts.copies[query], parts.copies[query + 1], parts.values, {}, {}};
  }

  // local() of the nodes of a tree that follows a text.
  TreeMix local_tree(const GatedUnit::Parts& parts, std::span<const MixerNode> nodes,
                     const MixerState& state) const {
    BlockAttentionContext block = block_context(unit_.options(), nodes[0].context);
    block.options = pattern();
    const auto past = state.find("k");
    const int64_t before = past == state.end() ? 0 : past->second.size(1);
    const GatedUnit::Bias bias =
        unit_.bias(before, tree_of(nodes).deepest + 1, 1, parts.gate.value().device());
    block.bias_origin = bias.origin;
    return tree_with_cache({parts.copies[0], parts.copies[1], parts.values, {}, {}}, nodes, state,
                           block, params_.group - 1, bias.table);
  }

  std::string mechanism_;
  FlashParams params_;
  GatedUnit unit_;
  std::optional<ConvBranch> conv_;
};

// U * sum_j A_ij V_j with the weight A(i, j) of two tokens.
template <typename Number, typename Weight>
std::vector<Number> gated_sum(const ReferenceSequence<Number>& s, const ReferenceUnit<Number>& unit,
                              const Weight& weight) {
  std::vector<Number> y(static_cast<size_t>(s.T * unit.e), 0);
  for (int64_t i = 0; i < s.T; ++i) {
    Number* out = &y[static_cast<size_t>(i * unit.e)];
    for (int64_t j = 0; j < s.T; ++j) {
      if (!s.sees(i, j)) continue;
      const Number a = weight(i, j);
      for (int64_t c = 0; c < unit.e; ++c) out[c] += a * unit.value(j)[c];
    }
    for (int64_t c = 0; c < unit.e; ++c) {
      out[c] = s.stored(out[c]) * unit.gate[static_cast<size_t>(i * unit.e + c)];
    }
  }
  return y;
}

std::vector<LimitingCase> limiting_cases() {
  return {{"a group that holds everything gives the quadratic unit, divided by the group",
           "{group: 64, key_width: 8, bias: none}",
           {Form::causal},
           {},
           [](const ReferenceSequence<double>& s) {
             FlashParams params;
             params.key_width = 8;
             const auto unit = reference_unit(params, s, {"local_query", "local_key"});
             return gated_sum(s, unit, [&](int64_t i, int64_t j) {
               return reference_weight(BlockWeights::relu_squared,
                                       dot_product(unit.copy(0, i), unit.copy(1, j), unit.s) / 64);
             });
           }},
          {"groups of one token give linear attention over the tokens before",
           "{group: 1, key_width: 8, parts: global}",
           {Form::causal},
           {},
           [](const ReferenceSequence<double>& s) {
             FlashParams params;
             params.key_width = 8;
             const auto unit = reference_unit(params, s, {"global_query", "global_key"});
             return gated_sum(s, unit, [&](int64_t i, int64_t j) {
               if (j == i) return 0.0;
               return dot_product(unit.copy(0, i), unit.copy(1, j), unit.s);
             });
           }},
          {"rotary positions on as many channels as there are give rope: whole",
           "{group: 7, key_width: 8, rope_width: 8}",
           {Form::noncausal, Form::causal},
           {},
           [](const ReferenceSequence<double>& s) {
             FlashParams params;
             params.group = 7;
             params.key_width = 8;
             params.rope = "whole";
             return flash_definition(params, s);
           }}};
}

}  // namespace

std::unique_ptr<TokenMixer> make_flash_unit(const char* mechanism, const FlashParams& params,
                                            const MixerOptions& options, const MixerScope& scope) {
  return std::make_unique<FlashMixer>(mechanism, params, options, scope);
}

template <typename Number>
std::vector<Number> flash_definition(const FlashParams& params,
                                     const ReferenceSequence<Number>& s) {
  const ReferenceUnit<Number> unit = reference_unit(params, s, params.copies());
  const auto C = static_cast<Number>(params.group);
  const Number N = reference_divisor(params, s);
  const bool causal = s.form == Form::causal;
  const int64_t before = params.conv / 2, taps = causal ? before + 1 : params.conv;
  return gated_sum(s, unit, [&](int64_t i, int64_t j) {
    const int64_t mine = i / params.group, other = j / params.group, tap = j - i + before;
    Number weight = 0;
    if (params.conv > 0 && tap >= 0 && tap < taps) {
      weight += s.parameter("conv")[static_cast<size_t>(tap)];
    }
    if (params.has_local() && mine == other) {
      const Number logit = dot_product(unit.copy(0, i), unit.copy(1, j), unit.s) / C +
                           reference_bias(params, s, j - i, Number{1}, params.group);
      weight += reference_weight(params.weights, logit);
    }
    if (!params.has_global()) return weight;
    const size_t query = params.global_copies();
    const Number product = dot_product(unit.copy(query, i), unit.copy(query + 1, j), unit.s);
    if (!causal) return weight + product / N;
    if (other >= mine) return weight;
    return weight + product / C / (params.mean ? static_cast<Number>(mine) : Number{1});
  });
}

template std::vector<float> flash_definition(const FlashParams&, const ReferenceSequence<float>&);
template std::vector<double> flash_definition(const FlashParams&, const ReferenceSequence<double>&);

std::vector<std::string> FlashParams::copies() const {
  std::vector<std::string> names;
  if (has_local()) names.insert(names.end(), {"local_query", "local_key"});
  if (has_global()) names.insert(names.end(), {"global_query", "global_key"});
  return names;
}

void FlashParams::describe(ConfigDescription<FlashParams>& d) {
  describe_gated_maps(d, kPresets);
  describe_gated_weights(d);
  describe_gated_length(d);
  d.field("group", &FlashParams::group, "tokens C of a group").range(1, 1 << 20).unit("tokens");
  d.field("mean", &FlashParams::mean, "causal: divide the sum over earlier groups by their number");
  d.choice("parts", &FlashParams::parts, {"both", "local", "global"},
           "the part inside groups, the part across them, or their sum");
  d.field("conv", &FlashParams::conv,
          "taps of a centred filter of the values, one for all channels, added before the gate; "
          "causal: those of the token and before it; 0: none")
      .range(0, 4095)
      .unit("tokens");
  describe_conv_init(d);
}

void FlashParams::validate(const ConfigNode& at) const {
  check(at);
}

MixerTraits FlashParams::traits(MixerTraits traits) const {
  if (length == "padded") {
    traits.causal = traits.decode_state = traits.constant_state = false;
    traits.depends_on_length = true;
  }
  return traits;
}

Mechanism flash_mechanism() {
  Mechanism facts;
  facts.name = "flash";
  facts.title = "FLASH: gated attention unit, quadratic in groups and linear across them";
  facts.equation =
      "U, V, Z as flash_quad; four copies q, k, q', k' of Z; g = the group of C tokens\n"
      "y_i = U_i (sum_{g_j = g_i} relu(q_i . k_j / C + b_{j-i})^2 V_j + sum_{g_j < g_i} q'_i . "
      "k'_j "
      "V_j / C)\n(noncausal: the second sum over all j, divided by N; conv: + sum_d conv_d V_{i-d} "
      "in the brackets); W_o y";
  facts.complexity = "time B T (C (s + e) + 2 s e), memory of decoding B (C (s + e) + 2 s e)";
  facts.sources = "Hua et al. 2022, Transformer Quality in Linear Time; FLASH-pytorch";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T (C (s + e) + s e)";
  facts.presets = kPresets;
  facts.cost_cases = {"{}", "{parts: global}", "{conv: 63}"};
  // Wider than variants, of which the first is run with rotary positions.
  facts.check_head_width = 10;
  facts.variants = {
      "{group: 16, key_width: 8, preset: paper}",
      "{group: 7, key_width: 8, rope_width: 4, preset: linearized_llm_augmented, conv: 5}",
      "{group: 5, key_width: 6, rope: none, parts: global, length: padded}"};
  facts.limits = limiting_cases();
  return define_mechanism<FlashParams, FlashMixer>(
      std::move(facts), [](const FlashParams& params, const auto& sequence) {
        return flash_definition(params, sequence);
      });
}

}  // namespace linnet
