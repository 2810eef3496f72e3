// Softmax attention over all keys: parameters, mixer, registry entry.
#include "attention/softmax/softmax.h"

#include <algorithm>

#include "attention/common/distance_bias.h"
#include "attention/common/mixer_support.h"
#include "attention/common/tree_support.h"
#include "attention/define.h"
#include "attention/primitives/block_attention/block_attention.h"
#include "core/cuda/backend.h"
#include "layers/cache_places.h"

namespace linnet {

namespace {

const std::vector<Preset> kPresets = {
    {"t5",
     "T5: no scale, a relative bias of 32 buckets (none in cross-attention)",
     {{"scale", "1"}, {"bias", "t5"}}}};

class SoftmaxMixer : public AttentionMixer {
 public:
  SoftmaxMixer(const SoftmaxParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    if (params.bias == "t5" && options.form != Form::cross) bias_.emplace(options, scope.tied);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    BlockAttentionContext block = block_context(options(), context);
    block.options.scale = params_.scale.value_or(default_scale(options()));
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    if (options().form == Form::cross) {
      MixerState encoded = state;
      if (encoded.empty()) encoded = encoded_source(input, context);
      block.key_mask = mask_from_state(encoded, "valid");
      const Variable y = block_attention({input.q,
                                          as_dtype(encoded.at("k"), input.q.dtype()),
                                          as_dtype(encoded.at("v"), input.q.dtype()),
                                          {},
                                          {},
                                          {}},
                                         block);
      return {y, std::move(encoded)};
    }
    if (options().form == Form::causal) {
      MixerState placed;
      const MixerState& cache =
          with_requested_places(state, context.place.time_offset, input.q.size(1), placed);
      const Variable bias = bias_table(cache, input.q.size(1), input.q.value().device(), block);
      MixResult result =
          causal_with_cache(input, context, cache, block, tokens_to_keep(state), bias);
      keep_request(state, result.state);
      return result;
    }
    const Variable bias = bias_table(state, input.q.size(1), input.q.value().device(), block);
    return {block_attention({input.q, input.k, input.v, {}, {}, bias}, block), {}};
  }

  TreeMix mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                   const MixerState& state) const override {
    if (bias_ && on_cuda(input.q.value())) return mix_paths(input, nodes, state);
    BlockAttentionContext block = block_context(options(), nodes[0].context);
    block.options.scale = params_.scale.value_or(default_scale(options()));
    const Variable bias =
        bias_table(state, tree_of(nodes).deepest + 1, input.q.value().device(), block);
    return tree_with_cache(input, nodes, state, block, kKeepAll, bias);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = full_attention_cost(options(), shape);
    if (bias_) cost.bytes += bias_->bytes(shape.dtype);
    return cost;
  }

 private:
  // The bias of keys behind each other, those of the state and `tokens`; undefined where there is
  // none.
  Variable bias_table(const MixerState& state, int64_t tokens, Device device,
                      BlockAttentionContext& block) const {
    if (!bias_) return {};
    const auto past = state.find("k");
    const int64_t carried = past == state.end() ? 0 : past->second.size(1);
    const int64_t reach = std::max<int64_t>(carried + tokens, 1);
    block.bias_origin = reach - 1;
    const bool causal = options().form == Form::causal;
    return bias_->table(1 - reach, causal ? reach : 2 * reach - 1, device);
  }

  SoftmaxParams params_;
  std::optional<DistanceBias> bias_;
};

template <typename Number>
std::vector<Number> definition(const SoftmaxParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const bool biased = params.bias == "t5" && s.form != Form::cross;
  return softmax_attention_reference(
      s, scale, [](int64_t, int64_t) { return true; },
      [&](int64_t h, int64_t i, int64_t j) {
        return biased ? reference_distance_bias(s, h, j - i) : Number{0};
      });
}

}  // namespace

void SoftmaxParams::describe(ConfigDescription<SoftmaxParams>& d) {
  describe_preset(d, kPresets);
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  d.choice("bias", &SoftmaxParams::bias, {"none", "t5"},
           "bias added to logits: none, or one value per head and bucket of distances (32 "
           "buckets), one table for all layers (self forms)");
  describe_dropout(d);
}

Mechanism softmax_mechanism() {
  Mechanism facts;
  facts.name = "softmax";
  facts.title = "Softmax attention";
  facts.equation = "y_i = sum_j softmax_j(scale q_i . k_j + b_{j-i}) v_j, b = 0 unless bias: t5";
  facts.complexity = "time 2 B H T^2 K, memory of decoding 2 B T H K";
  facts.sources = "Vaswani et al. 2017, Attention Is All You Need";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = true;
  facts.traits.grouped_queries = true;
  facts.traits.growth = "T^2";
  facts.presets = kPresets;
  facts.variants = {"{preset: t5}"};
  facts.limits = {{"equal values are returned as they are",
                   "{}",
                   {Form::noncausal, Form::causal, Form::cross},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "v.weight") std::fill(values.begin(), values.end(), 0);
                   },
                   [](const ReferenceSequence<double>& s) {
                     std::vector<double> y;
                     for (int64_t i = 0; i < s.T; ++i) {
                       y.insert(y.end(), s.value(0, 0), s.value(0, 0) + s.H * s.V);
                     }
                     return y;
                   }}};
  return define_mechanism<SoftmaxParams, SoftmaxMixer>(
      std::move(facts), [](const SoftmaxParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
