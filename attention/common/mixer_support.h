// Shared code of mixers: descriptions of common options, masks, and the KV cache.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/mechanism.h"
#include "attention/primitives/block_attention/block_attention.h"

namespace linnet {

// The common options. Params has members `preset`, `scale`, `dropout`.
template <typename Params>
void describe_preset(ConfigDescription<Params>& d, const std::vector<Preset>& presets) {
  std::vector<std::string> names{"none"};
  for (const Preset& preset : presets) names.push_back(preset.name);
  d.field("preset", &Params::preset, "options as a paper ran it; explicit options win")
      .choices(std::move(names));
}
template <typename Params>
void describe_scale(ConfigDescription<Params>& d, const std::string& help) {
  d.field("scale", &Params::scale, help).above(0);
}
template <typename Params>
void describe_dropout(ConfigDescription<Params>& d) {
  d.field("dropout", &Params::dropout,
          "probability of dropping a softmax weight; null: the model's attention_dropout")
      .at_least(0)
      .below(1);
}

// 1/sqrt(K).
double default_scale(const MixerOptions& options);

// Masks, segments, positions and causality of a batch for block_attention.
BlockAttentionContext block_context(const MixerOptions& options, const MixerContext& context);
// Throws UsageError where keys have positions of their own: windows are counted in the queries'
// positions, which belong to the same tokens.
void refuse_key_positions(const MixerContext& context, std::string_view mechanism);
// Throws UsageError unless the positions of queries count from place.time_offset in every row, for
// mechanisms whose cross form compares them with positions of the source on the host. Positions on
// a device are taken for granted.
void require_counted_positions(const MixerContext& context, std::string_view mechanism);
// Switches dropout on while training, keyed by this layer's draws.
void set_dropout(BlockAttentionContext& block, const std::optional<double>& probability,
                 const MixerOptions& options, const MixerContext& context, const RandomKey& key);

// Pairs of query and key in a sequence of T tokens that the pattern shows.
double visible_pairs(const BlockAttentionOptions& pattern, int64_t T);
// Cost of block attention in a self form; if causal, with the bytes of the KV cache that it leaves,
// the last `keep` tokens.
MixerCost block_attention_cost(const MixerOptions& options, const BlockAttentionOptions& pattern,
                               int64_t keep, const MixerShape& shape);
// Cost of attention to all keys in any form, with the bytes of the KV cache unless noncausal.
MixerCost full_attention_cost(const MixerOptions& options, const MixerShape& shape);
// Bytes of the keys and values that carry_keys leaves after that many tokens.
double kv_cache_bytes(const MixerOptions& options, int64_t keep, const MixerShape& shape);

inline constexpr int64_t kKeepAll = -1;
// Causal block attention continuing from the keys and values in `state` (k, v [B,P,H,.] and their
// mask, i64 [B,P], under "valid"), which become the last `keep` of [past ; current].
AttentionMixer::MixResult causal_with_cache(const MixInput& input, const MixerContext& context,
                                            const MixerState& state,
                                            const BlockAttentionContext& block, int64_t keep,
                                            const Variable& bias = {});

// The state that causal_with_cache leaves, for mechanisms that read cached keys in other ways.
MixerState carry_keys(const MixInput& input, const MixerContext& context, const MixerState& state,
                      int64_t keep);

// The keys and values of a source and their mask, as cross-attention by softmax keeps them.
MixerState encoded_source(const MixInput& input, const MixerContext& context);

// An entry of a state in that dtype; undefined where there is none.
Variable carried(const MixerState& state, const std::string& name, DType dtype);
// The mask of the last `keep` of `past` cached tokens, whose own mask is `name` in the state, and
// those of `current` [B,T,...].
Variable kv_cache_mask(const MixerContext& context, const MixerState& state,
                       const std::string& name, const Variable& current, int64_t past,
                       int64_t keep);

// x in that dtype: states come back from files as f32.
Variable as_dtype(const Variable& x, DType dtype);
// x [B,T,H,.] with zeros for masked tokens (mask u8 [B,T], 1 = valid; undefined: x itself), which
// are not read and get no gradient.
Variable zeros_for_masked(const Variable& x, const Tensor& mask);
// The dtype of sums over tokens: f64 for f64 inputs, else f32.
DType sum_dtype(DType inputs);

// Masks travel in states as i64.
Variable mask_to_state(const Tensor& mask);
// u8, or undefined when the state has no such entry.
Tensor mask_from_state(const MixerState& state, const std::string& name);

}  // namespace linnet
