// FLASH-Quad: parameters, mixer, literal definition, registry entry.
#include "attention/flash_quad/flash_quad.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/define.h"
#include "attention/flash/gated_unit_reference.h"
#include "layers/cache_places.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"paper",
     "rotary positions on all channels and a bias for each distance, as in its pseudo-code",
     {{"rope", "whole"}, {"bias", "toeplitz"}}},
    {"paper_long",
     "the same for contexts above 512: the bias is a product of vectors with rotary positions",
     {{"rope", "whole"}, {"bias", "rope"}}},
    {"lucidrains",
     "FLASH-pytorch's GAU: no rotary positions, the bias times sqrt(E) before the division by the "
     "padded length",
     {{"rope", "none"},
      {"bias", "t5"},
      {"bias_place", "before"},
      {"bias_scale", "width"},
      {"length", "padded"}}},
    {"linearized_llm",
     "as its FLASH models train: the Laplace weights, token shift",
     {{"weights", "laplace"}, {"token_shift", "true"}}},
    {"linearized_llm_softmax",
     "the softmax mode of that code, which its text calls the original attention",
     {{"weights", "softmax"}, {"token_shift", "true"}}},
    {"linearized_llm_square",
     "the squared mode of that code, which its script runs under that name: divides by N twice",
     {{"weights", "laplace"}, {"bias_place", "between"}, {"token_shift", "true"}}}};

const std::vector<std::string> kCopies = {"query", "key"};

class FlashQuadMixer : public TokenMixer {
 public:
  FlashQuadMixer(const FlashQuadParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : params_(params), unit_("flash_quad", params, options, scope, kCopies, options.max_length) {}

  bool replaces_feed_forward() const override { return true; }
  int64_t length_limit() const override {
    return params_.bias == "toeplitz" ? unit_.options().max_length : 0;
  }

  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState& state) const override {
    refuse_key_positions(context, "flash_quad");
    const MixerOptions& options = unit_.options();
    if (x.size(1) == 0) return nothing_mixed(x, state);
    const GatedUnit::Parts parts = unit_.project(x, context, state);
    const bool causal = options.form == Form::causal;
    MixerState placed;
    const MixerState& cache =
        with_requested_places(state, context.place.time_offset, x.size(1), placed);
    const auto past = cache.find("k");
    const int64_t before = past == cache.end() ? 0 : past->second.size(1);
    BlockAttentionContext block = block_context(options, context);
    const double divisor = unit_.divisor(x.size(1));
    block.options.scale = params_.logit_factor(divisor);
    block.options.weights = params_.weights;
    set_dropout(block, params_.dropout, options, context, unit_.draw_key(context));
    const GatedUnit::Bias bias = unit_.bias(
        before, x.size(1), params_.bias_factor(static_cast<double>(options.width), divisor),
        x.value().device());
    block.bias_origin = bias.origin;
    const MixInput input{parts.copies[0], parts.copies[1], parts.values, {}, {}};
    if (causal) {
      AttentionMixer::MixResult mixed =
          causal_with_cache(input, context, cache, block, tokens_to_keep(state), bias.table);
      keep_request(state, mixed.state);
      return unit_.finish(parts, mixed.y, std::move(mixed.state));
    }
    return unit_.finish(
        parts, block_attention({input.q, input.k, input.v, {}, {}, bias.table}, block), {});
  }

  MixerResult forward_cross(const Variable&, const Variable&, const MixerContext&,
                            const MixerState&) const override {
    throw Error("flash_quad: the cross form is not defined");
  }

  MixerCost cost(const MixerShape& shape) const override {
    const bool causal = unit_.options().form == Form::causal;
    const auto widths =
        static_cast<double>(params_.key_width + params_.value_width(unit_.options()));
    const auto tokens = static_cast<double>(shape.batch * shape.queries);
    BlockAttentionOptions all;
    all.causal = causal;
    MixerCost cost = unit_.cost(shape);
    cost.mixing = static_cast<double>(shape.batch) * visible_pairs(all, shape.queries) * widths;
    if (causal) {
      cost.bytes += tokens * (widths * static_cast<double>(size_of(shape.dtype)) + sizeof(int64_t));
    }
    return cost;
  }

 private:
  FlashQuadParams params_;
  GatedUnit unit_;
};

template <typename Number>
std::vector<Number> definition(const FlashQuadParams& params, const ReferenceSequence<Number>& s) {
  const ReferenceUnit<Number> unit = reference_unit(params, s, kCopies);
  const Number divisor = reference_divisor(params, s);
  const auto scale = static_cast<Number>(params.logit_factor(static_cast<double>(divisor)));
  const auto factor = static_cast<Number>(
      params.bias_factor(static_cast<double>(s.E), static_cast<double>(divisor)));
  std::vector<Number> y(static_cast<size_t>(s.T * unit.e), 0);
  const bool softmax = params.weights == BlockWeights::softmax;
  for (int64_t i = 0; i < s.T; ++i) {
    Number* out = &y[static_cast<size_t>(i * unit.e)];
    const auto logit = [&](int64_t j) {
      return dot_product(unit.copy(0, i), unit.copy(1, j), unit.s) * scale +
             reference_bias(params, s, j - i, factor, s.options.max_length);
    };
    Number largest = 0, total = 1;
    if (softmax) {
      largest = -std::numeric_limits<Number>::infinity();
      for (int64_t j = 0; j < s.T; ++j) {
        if (s.sees(i, j)) largest = std::max(largest, logit(j));
      }
      total = 0;
      for (int64_t j = 0; j < s.T; ++j) {
        if (s.sees(i, j)) total += std::exp(logit(j) - largest);
      }
    }
    for (int64_t j = 0; j < s.T; ++j) {
      if (!s.sees(i, j)) continue;
      const Number weight = softmax ? std::exp(logit(j) - largest) / total
                                    : reference_weight(params.weights, logit(j));
      for (int64_t c = 0; c < unit.e; ++c) out[c] += weight * unit.value(j)[c];
    }
    for (int64_t c = 0; c < unit.e; ++c) {
      out[c] = s.stored(out[c]) * unit.gate[static_cast<size_t>(i * unit.e + c)];
    }
  }
  return y;
}

}  // namespace

void FlashQuadParams::describe(ConfigDescription<FlashQuadParams>& d) {
  describe_gated_maps(d, kPresets);
  describe_gated_weights(d, true);
  describe_gated_length(d);
  d.choice("bias_place", &FlashQuadParams::bias_place, {"after", "before", "between"},
           "the bias is added after, or before, the logits are divided by N, or between two such "
           "divisions");
  d.choice("bias_scale", &FlashQuadParams::bias_scale, {"key", "width"},
           "t5 buckets are multiplied by sqrt(s), or by sqrt(E)");
}

void FlashQuadParams::validate(const ConfigNode& at) const {
  check(at);
}

MixerTraits FlashQuadParams::traits(MixerTraits traits) const {
  // The length of a call is not known token by token.
  if (length == "padded") {
    traits.causal = traits.decode_state = false;
    traits.depends_on_length = true;
  }
  return traits;
}

double FlashQuadParams::logit_factor(double divisor) const {
  return bias_place == "between" ? 1 / (divisor * divisor) : 1 / divisor;
}

double FlashQuadParams::bias_factor(double width, double divisor) const {
  const double scale =
      bias == "t5" && bias_scale == "width" ? std::sqrt(width / static_cast<double>(key_width)) : 1;
  return bias_place == "after" ? scale : scale / divisor;
}

Mechanism flash_quad_mechanism() {
  Mechanism facts;
  facts.name = "flash_quad";
  facts.title = "FLASH-Quad: gated attention unit over all tokens";
  facts.equation =
      "U, V = silu(x W_u), silu(x W_v) of width e = 2 E; Z = silu(x W_z) of width s = 128\n"
      "q, k = rope(gamma Z + beta); y_i = U_i sum_j relu(q_i . k_j / N + b_{j-i})^2 V_j; W_o y";
  facts.complexity = "time B T^2 (s + e), memory of decoding B T (s + e)";
  facts.sources = "Hua et al. 2022, Transformer Quality in Linear Time; FLASH-pytorch";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T^2";
  facts.presets = kPresets;
  facts.variants = {
      "{key_width: 8, bias: toeplitz, rope: whole, token_shift: true}",
      "{key_width: 6, preset: lucidrains, expansion: 1}",
      "{key_width: 6, preset: lucidrains, length: context, expansion: 1}",
      "{key_width: 8, rope_width: 4, weights: laplace, bias: rope, bias_place: between}",
      "{key_width: 6, weights: softmax, expansion: 1}"};
  facts.limits = {{"gates of zeros give zeros",
                   "{key_width: 8}",
                   {Form::noncausal, Form::causal},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name.starts_with("gate.")) std::fill(values.begin(), values.end(), 0);
                   },
                   [](const ReferenceSequence<double>& s) {
                     return std::vector<double>(static_cast<size_t>(s.T * 2 * s.E), 0);
                   }},
                  {"rotary positions on as many channels as there are give rope: whole",
                   "{key_width: 8, rope_width: 8}",
                   {Form::noncausal, Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     FlashQuadParams params;
                     params.key_width = 8;
                     params.rope = "whole";
                     return definition(params, s);
                   }}};
  return define_mechanism<FlashQuadParams, FlashQuadMixer>(
      std::move(facts), [](const FlashQuadParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
