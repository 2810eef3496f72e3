// Masks, dropout and the KV cache of several mixers.
#include "attention/common/mixer_support.h"

#include <cmath>

#include "attention/primitives/block_attention/carry.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "core/cuda/backend.h"
#include "layers/cache_places.h"

namespace linnet {

double default_scale(const MixerOptions& options) {
  return 1 / std::sqrt(static_cast<double>(options.head_width()));
}

BlockAttentionContext block_context(const MixerOptions& options, const MixerContext& context) {
  BlockAttentionContext block;
  block.options.causal = options.form == Form::causal;
  block.query_mask = context.key_mask;
  block.place = context.place;
  if (options.form == Form::cross) {
    block.cross = true;
    block.key_mask = context.source_mask;
    return block;
  }
  block.key_mask = context.key_mask;
  block.segments = context.segments;
  block.positions = context.positions;
  return block;
}

void refuse_key_positions(const MixerContext& context, std::string_view mechanism) {
  require_usage(!context.key_positions.defined(), mechanism,
                " counts its window in the positions of the tokens, so keys cannot have others; "
                "leave out the positions of the keys");
}

void require_counted_positions(const MixerContext& context, std::string_view mechanism) {
  if (!context.positions.defined() || on_cuda(context.positions)) return;
  const int64_t T = context.positions.size(1);
  for (int64_t i = 0; i < context.positions.elements(); ++i) {
    const int64_t position = context.positions.data<int32_t>()[i];
    require_usage(position == context.place.time_offset + i % T, mechanism,
                  ": in this cross form queries have consecutive positions in every row; got ",
                  position, " where ", context.place.time_offset + i % T, " was expected");
  }
}

void set_dropout(BlockAttentionContext& block, const std::optional<double>& probability,
                 const MixerOptions& options, const MixerContext& context, const RandomKey& key) {
  if (!context.training) return;
  block.options.dropout = probability.value_or(options.dropout);
  block.options.dropout_key = key;
}

double visible_pairs(const BlockAttentionOptions& pattern, int64_t T) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < T; ++i) {
    int64_t begin = 0, end = T;
    if (pattern.pattern == BlockPattern::band) {
      begin = i - pattern.left;
      end = i + pattern.right + 1;
    } else if (pattern.pattern == BlockPattern::blocks) {
      begin = i - i % pattern.block;
      end = begin + pattern.block;
    }
    if (pattern.causal) end = i + 1;
    pairs += std::min(end, T) - std::max<int64_t>(begin, 0);
  }
  return static_cast<double>(pairs);
}

MixerCost block_attention_cost(const MixerOptions& options, const BlockAttentionOptions& pattern,
                               int64_t keep, const MixerShape& shape) {
  const auto rows = static_cast<double>(shape.batch), width = static_cast<double>(options.width);
  MixerCost cost;
  // Both products of all heads: K + V multiply-adds per pair and head.
  cost.mixing = rows * visible_pairs(pattern, shape.queries) * 2 * width;
  if (!pattern.causal) return cost;
  cost.bytes = kv_cache_bytes(options, keep, shape);
  return cost;
}

MixerCost full_attention_cost(const MixerOptions& options, const MixerShape& shape) {
  if (options.form != Form::cross) {
    BlockAttentionOptions all;
    all.causal = options.form == Form::causal;
    return block_attention_cost(options, all, kKeepAll, shape);
  }
  const auto tokens = static_cast<double>(shape.batch * shape.keys * 2);
  return {.mixing = static_cast<double>(shape.queries * options.width) * tokens,
          .bytes = tokens * static_cast<double>(options.key_width()) *
                   static_cast<double>(size_of(shape.dtype))};
}

double kv_cache_bytes(const MixerOptions& options, int64_t keep, const MixerShape& shape) {
  const int64_t kept = keep < 0 ? shape.queries : std::min(keep, shape.queries);
  const double token =
      2 * static_cast<double>(options.key_width()) * static_cast<double>(size_of(shape.dtype)) +
      sizeof(int64_t);
  return static_cast<double>(shape.batch * kept) * token;
}

AttentionMixer::MixResult causal_with_cache(const MixInput& input, const MixerContext& context,
                                            const MixerState& state,
                                            const BlockAttentionContext& block, int64_t keep,
                                            const Variable& bias) {
  MixerState placed;
  // A bias may have no elements for places that the text has not.
  if (keep > 0 && !bias.defined()) {
    const MixerState& window = with_window_places(state, keep, placed);
    if (&window != &state) return causal_with_cache(input, context, window, block, keep);
  }
  const Variable past_k = carried(state, "k", input.k.dtype());
  const Variable past_v = carried(state, "v", input.v.dtype());
  BlockAttentionContext with_past = block;
  with_past.past_mask = mask_from_state(state, "valid");
  return {block_attention({input.q, input.k, input.v, past_k, past_v, bias}, with_past),
          carry_keys(input, context, state, keep)};
}

MixerState carry_keys(const MixInput& input, const MixerContext& context, const MixerState& state,
                      int64_t keep) {
  const auto mask = state.find("valid");
  const CarriedTokens after =
      carry_with_mask({{carried(state, "k", input.k.dtype()), carried(state, "v", input.v.dtype())},
                       mask == state.end() ? Variable() : mask->second},
                      {input.k, input.v}, context.key_mask, context.segments, keep);
  return {{"k", after.tokens[0]}, {"v", after.tokens[1]}, {"valid", after.mask}};
}

Variable carried(const MixerState& state, const std::string& name, DType dtype) {
  const auto found = state.find(name);
  return found == state.end() ? Variable() : as_dtype(found->second, dtype);
}

Variable kv_cache_mask(const MixerContext& context, const MixerState& state,
                       const std::string& name, const Variable& current, int64_t past,
                       int64_t keep) {
  return mask_to_state(carry_mask(mask_from_state(state, name), context.key_mask, context.segments,
                                  current.size(0), past, current.size(1), keep,
                                  current.value().device()));
}

MixerState encoded_source(const MixInput& input, const MixerContext& context) {
  MixerState encoded{{"k", input.k}, {"v", input.v}};
  if (context.source_mask.defined()) encoded["valid"] = mask_to_state(context.source_mask);
  return encoded;
}

Variable as_dtype(const Variable& x, DType dtype) {
  return x.dtype() == dtype ? x : cast(x, dtype);
}

Variable zeros_for_masked(const Variable& x, const Tensor& mask) {
  return mask.defined() ? masked_fill(x, mask.reshape({x.size(0), x.size(1), 1, 1}), 0) : x;
}

DType sum_dtype(DType inputs) {
  return inputs == DType::f64 ? DType::f64 : DType::f32;
}

Variable mask_to_state(const Tensor& mask) {
  return Variable(mask.to(DType::i64));
}

Tensor mask_from_state(const MixerState& state, const std::string& name) {
  const auto found = state.find(name);
  return found == state.end() ? Tensor() : found->second.value().to(DType::u8);
}

}  // namespace linnet
