#include "attention/common/abc/queue_attention.h"

#include "attention/common/abc/token_queues.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

// Keys and values of all queues, [B*Q,P,H,.], and which of them are valid.
struct Held {
  Variable k, v;
  Tensor valid;
};

Variable zeros_like(const Variable& x, int64_t rows, int64_t tokens) {
  return Variable(
      Tensor::zeros({rows, tokens, x.size(2), x.size(3)}, x.dtype(), x.value().device()));
}

// Contents of queues before the first token: nothing, or zeros that take softmax weight.
Held first_held(const QueueAttention& attention, const MixInput& input, int64_t places) {
  if (attention.mask_empty) return {};
  const int64_t rows = input.k.size(0) * attention.queues;
  return {zeros_like(input.k, rows, places), zeros_like(input.v, rows, places),
          Tensor::full({rows, places}, 1, DType::u8, input.k.value().device())};
}

// [B,Q*P,...] <-> [B*Q,P,...].
Variable split_rows(const Variable& x, int64_t queues) {
  return reshape(x, {x.size(0) * queues, x.size(1) / queues, x.size(2), x.size(3)});
}
Variable join_rows(const Variable& x, int64_t queues) {
  return reshape(x, {x.size(0) / queues, x.size(1) * queues, x.size(2), x.size(3)});
}
Tensor with_rows(const Tensor& mask, int64_t rows) {
  return mask.reshape({rows, mask.elements() / rows});
}

Held held_of(const MixerState& state, const MixInput& input, int64_t queues) {
  const auto of = [&](const char* name) {
    return split_rows(as_dtype(state.at(name), input.k.dtype()), queues);
  };
  const Variable k = of("k");
  return {k, of("v"), with_rows(mask_from_state(state, "valid"), k.size(0))};
}

MixerState state_of(const Held& held, int64_t queues) {
  return {{"k", join_rows(held.k, queues)},
          {"v", join_rows(held.v, queues)},
          {"valid", mask_to_state(with_rows(held.valid, held.k.size(0) / queues))}};
}

// `keep`: the most tokens that are carried on. With several queues these places always exist, since
// the number of tokens in each queue depends on the row.
TokenQueues queues_of(const QueueAttention& attention, const Tensor& mask, const Tensor& segments,
                      const Tensor& examples, const Variable& k, const Held& held,
                      const MixerState& state, int64_t keep) {
  TokenQueueInputs in;
  in.B = k.size(0);
  in.T = k.size(1);
  in.queues = attention.queues;
  const int64_t there = in.T + (held.k.defined() ? held.k.size(1) : 0);
  in.keep = in.queues > 1 ? keep : std::min(keep, there);
  in.mask = mask;
  in.segments = segments;
  if (const auto phase = state.find("phase"); phase != state.end())
    in.phase = phase->second.value();
  if (const auto pushed = state.find("pushed"); pushed != state.end())
    in.pushed = pushed->second.value();
  in.examples = examples;
  in.past_mask = held.valid;
  in.device = k.value().device();
  return token_queues(in);
}

// The keys and values that are carried on after this call.
Held carried(const TokenQueues& queues, const Held& before, const Variable& k, const Variable& v) {
  return {take_tokens(carry_tokens(before.k, k, kKeepAll), queues.carry_order),
          take_tokens(carry_tokens(before.v, v, kKeepAll), queues.carry_order), queues.carry_mask};
}

BlockAttentionContext window(const QueueAttention& attention) {
  BlockAttentionContext block;
  block.options.scale = attention.scale;
  block.options.pattern = BlockPattern::band;
  block.options.causal = true;
  block.options.left = attention.slots - 1;
  block.options.dropout = attention.dropout;
  block.options.dropout_key = attention.dropout_key;
  // Masks, not positions, say which carried tokens exist.
  block.place.time_offset = attention.slots;
  return block;
}

AttentionMixer::MixResult read_source(const QueueAttention& attention, const MixInput& input,
                                      const MixerContext& context, const MixerState& state) {
  Held held;
  if (state.empty()) {
    const Held before = first_held(attention, input, attention.slots);
    const TokenQueues queues =
        queues_of(attention, context.source_mask, {}, {}, input.k, before, {}, attention.slots);
    held = carried(queues, before, take_tokens(input.k, queues.order, queues.place),
                   take_tokens(input.v, queues.order, queues.place));
  } else {
    held = {as_dtype(state.at("k"), input.q.dtype()), as_dtype(state.at("v"), input.q.dtype()),
            mask_from_state(state, "valid")};
  }
  BlockAttentionContext block;
  block.options.scale = attention.scale;
  block.options.dropout = attention.dropout;
  block.options.dropout_key = attention.dropout_key;
  block.place = context.place;
  block.cross = true;
  block.query_mask = context.key_mask;
  block.key_mask = held.valid;
  return {block_attention({input.q, held.k, held.v, {}, {}, {}}, block), state_of(held, 1)};
}

}  // namespace

AttentionMixer::MixResult queue_attention(const QueueAttention& attention,
                                          const MixerOptions& options, const MixInput& input,
                                          const MixerContext& context, const MixerState& state) {
  if (options.form == Form::cross) return read_source(attention, input, context, state);
  const int64_t Q = attention.queues, keep = attention.slots - 1;
  require_usage(attention.mask_empty || !context.segments.defined(),
                Q == 1 ? "abc_window" : "abc_dilated",
                ": mask_empty: false puts zeros before the first token of a row, which packed ",
                "documents do not have; set mask_empty: true, or do not pack");
  const Held before = state.empty() ? first_held(attention, input, keep) : held_of(state, input, Q);
  BlockAttentionContext block = window(attention);
  // Draws of dropout are indexed by pushed tokens, so that they do not depend on how a sequence is
  // split into calls.
  const int64_t rows = input.k.size(0);
  block.times = state.empty() ? Tensor::zeros({rows * Q}, DType::i64, input.k.value().device())
                              : state.at("pushed").value().reshape({rows * Q});
  if (Q == 1 && !context.key_mask.defined()) {
    // Every token is in its place already.
    block.segments = context.segments;
    block.place.examples = context.place.examples;
    AttentionMixer::MixResult result = causal_with_cache(
        input, context, before.k.defined() ? state_of(before, 1) : MixerState{}, block, keep);
    result.state["pushed"] =
        Variable(pushed_after(block.times, input.k.size(1)).reshape({rows, 1}));
    return result;
  }
  const TokenQueues queues = queues_of(attention, context.key_mask, context.segments,
                                       context.place.examples, input.k, before, state, keep);
  block.place.examples = queues.examples;
  block.query_mask = block.key_mask = queues.mask;
  if (before.k.defined()) block.past_mask = queues.past_mask;
  if (context.segments.defined()) block.segments = queues.segments;
  const Variable k = take_tokens(input.k, queues.order, queues.place),
                 v = take_tokens(input.v, queues.order, queues.place);
  const Variable y = block_attention(
      {take_tokens(input.q, queues.order, queues.place), k, v, before.k, before.v, {}}, block);
  MixerState after = state_of(carried(queues, before, k, v), Q);
  after["pushed"] = Variable(queues.pushed.reshape({rows, Q}));
  if (Q > 1) after["phase"] = Variable(queues.phase);
  return {take_tokens(y, queues.place, queues.order), std::move(after)};
}

MixerCost queue_attention_cost(const QueueAttention& attention, const MixerOptions& options,
                               const MixerShape& shape) {
  const int64_t Q = attention.queues, N = attention.slots;
  const auto rows = static_cast<double>(shape.batch), width = static_cast<double>(options.width);
  const bool cross = options.form == Form::cross;
  MixerCost cost;
  double kept = 0;
  if (cross) {
    kept = static_cast<double>(attention.mask_empty ? std::min(N, shape.keys) : N);
    cost.mixing = rows * static_cast<double>(shape.queries) * kept * 2 * width;
  } else {
    const BlockAttentionOptions pattern = window(attention).options;
    for (int64_t queue = 0; queue < Q; ++queue) {
      const int64_t tokens = (shape.queries - queue + Q - 1) / Q;
      cost.mixing += rows * visible_pairs(pattern, tokens) * 2 * width;
    }
    const bool all_places = Q > 1 || !attention.mask_empty;
    kept = static_cast<double>(Q * (all_places ? N - 1 : std::min(N - 1, shape.queries)));
    cost.bytes += rows * static_cast<double>(Q + (Q > 1 ? 1 : 0)) * sizeof(int64_t);
  }
  cost.bytes += rows * kept * (2 * width * size_of(shape.dtype) + sizeof(int64_t));
  return cost;
}

}  // namespace linnet
