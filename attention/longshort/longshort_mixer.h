// Long-short attention's mixer. For longshort.cpp only.
#pragma once

#include "attention/common/joint/joint_softmax.h"
#include "attention/common/joint/packed_chunks.h"
#include "attention/common/joint/position_logits.h"
#include "attention/common/mixer_support.h"
#include "attention/common/placed_step.h"
#include "attention/common/token_slices.h"
#include "attention/longshort/longshort.h"
#include "attention/longshort/wide_maps.h"
#include "attention/primitives/slot_attention/slot_attention.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/layout.h"
#include "layers/cache_places.h"

namespace linnet {

// The causal form has no biases on its projections.
inline MixerOptions longshort_options(MixerOptions options) {
  options.bias = options.bias && options.form != Form::causal;
  return options;
}

// Compressed keys and values [B,N,H,.], and the mask of those that exist (u8 [B,N]; undefined:
// all).
struct Compressed {
  Variable keys, values;
  Tensor valid;
};

class LongshortMixer : public AttentionMixer {
 public:
  LongshortMixer(const LongshortParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(longshort_options(options), scope),
        params_(params),
        count_(options.form == Form::causal ? params.rank : params.landmarks),
        scale_(params.scale.value_or(default_scale(options))) {
    const int64_t E = options.width;
    if (count_ > 0) compress_ = {scope.own.child("compress"), options.heads * count_, E, true};
    if (params.norm) {
      token_norm_ = {scope.own.child("token_norm"), E};
      if (count_ > 0) summary_norm_ = {scope.own.child("summary_norm"), E};
    }
    if (!relative()) return;
    require_usage(params.sinusoids == "interleaved" || E % 2 == 0,
                  "longshort: sinusoids: halves needs an even width, found ", E);
    positions_ = {scope.own.child("positions"), E, E, false};
    chunk_positions_ = {scope.own.child("chunk_positions"), E, E, true};
    content_vector_ = scope.own.parameter("content_vector", {E}, init_constant(0));
    position_vector_ = scope.own.parameter("position_vector", {E}, init_constant(0));
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    require_usage(input.x.defined() || count_ == 0,
                  "longshort compresses by maps of the layer's input, which a run of the core "
                  "alone lacks");
    if (options().form == Form::causal) {
      return context.segments.defined() ? packed(input, context, state)
                                        : causal(input, context, state);
    }
    require_usage(!context.segments.defined(),
                  "longshort without causality compresses whole rows; do not pack documents into "
                  "rows");
    return noncausal(input, context);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const bool causal = options().form == Form::causal;
    const int64_t T = shape.queries, E = options().width, H = options().heads;
    const int64_t chunks = T / params_.chunk, null = causal ? params_.null_tokens : 0;
    const int64_t summaries = causal ? (null + T) / params_.chunk * count_ : count_;
    int64_t far = causal ? 0 : T * count_;
    for (int64_t t = 0; causal && t < T; ++t) far += (null + t) / params_.chunk * count_;
    const double pairs = listed_pairs(window(null, T, kept(null)), T) + static_cast<double>(far);
    const auto rows = static_cast<double>(shape.batch), width = static_cast<double>(E);
    const auto times = [](int64_t a, int64_t b) { return static_cast<double>(a * b); };
    MixerCost cost;
    // Both products of a pair, and the products that add a token to keys and values of summaries.
    cost.mixing = rows * 2 * width * (pairs + times(causal ? chunks * params_.chunk : T, count_));
    cost.projections = rows * times(T, H * count_) * width;
    double parameters = times(H * count_, E + 1);
    if (params_.norm) parameters += (count_ > 0 ? 4 : 2) * width;
    if (relative()) {
      cost.projections += (rows * static_cast<double>(T) + width) * width *
                          static_cast<double>(params_.window + summaries);
      parameters += 2 * width * width + 3 * width;
    }
    cost.bytes = parameters * static_cast<double>(size_of(shape.dtype));
    if (!causal) return cost;
    const auto element = static_cast<double>(size_of(sum_dtype(shape.dtype)));
    const double pair = 2 * width * element + sizeof(int64_t);
    cost.bytes += rows * pair * static_cast<double>(kept(null + T) + summaries + T % params_.chunk);
    cost.bytes += rows * times(T % params_.chunk, H * count_) * element;
    return cost;
  }

 private:
  bool relative() const { return params_.relative && options().form == Form::causal; }
  // Number of the T tokens so far that windows of later tokens reach.
  int64_t kept(int64_t T) const { return std::min(params_.window - 1, T); }

  // The lists of T queries that follow `first` tokens, of which `past` are kept.
  KeyLists window(int64_t first, int64_t T, int64_t past) const {
    KeyLists lists;
    lists.size = lists.length = params_.window;
    if (options().form == Form::causal) {
      lists.kind = KeyLists::Kind::back;
    } else {
      lists.kind = KeyLists::Kind::block;
      lists.before = params_.side();
      lists.length += 2 * params_.side();
      lists.group = params_.window;
    }
    lists.first = first;
    lists.offset = first - past;
    lists.lists = (T + lists.group - 1) / lists.group;
    lists.keys = past + T;
    return lists;
  }
  // The lists of summaries of T queries that follow `first` tokens.
  KeyLists completed(int64_t first, int64_t group, int64_t T, int64_t summaries) const {
    KeyLists lists;
    lists.kind = KeyLists::Kind::completed;
    lists.size = params_.chunk;
    lists.rank = count_;
    lists.first = first;
    lists.group = group;
    lists.lists = (T + group - 1) / group;
    lists.length = lists.keys = summaries;
    return lists;
  }

  ListedAttentionContext attention(const Tensor& index, int64_t group, const char* part,
                                   const MixerContext& context) const {
    ListedAttentionContext at;
    at.options.group = group;
    if (context.training) {
      at.options.dropout = params_.dropout.value_or(options().dropout);
      at.options.dropout_key = draw_key(context).at(part);
    }
    at.index = index;
    at.query_mask = context.key_mask;
    at.place = context.place;
    return at;
  }

  // Outputs of queries q [B,T,H,K], in the dtype of sums, from the window (`near`) and from
  // summaries. The scale of q is applied here.
  Variable read(const Variable& q, const Variable& keys, const Variable& values,
                const ListedAttentionContext& near, const Compressed& summaries,
                const ListedAttentionContext& far) const {
    Tables tables;
    if (relative()) tables.tokens = distances(positions_, near.index.size(3), q);
    if (relative() && summaries.keys.defined()) {
      tables.summaries = distances(chunk_positions_, far.index.size(3), q);
    }
    return read(q, keys, values, near, summaries, far, tables);
  }
  // Vectors of the distances of the places of both lists; undefined where logits have none.
  struct Tables {
    Variable tokens, summaries;
  };
  Variable read(const Variable& q, const Variable& keys, const Variable& values,
                const ListedAttentionContext& near, const Compressed& summaries,
                const ListedAttentionContext& far, const Tables& tables) const {
    const auto with = [&](const Variable& vector) {
      const Variable of_heads = reshape(as_dtype(vector, q.dtype()), {q.size(2), q.size(3)});
      return add(scale(q, scale_), of_heads);
    };
    const Variable scaled = scale(q, scale_);
    Variable near_q = scaled, near_bias, far_bias;
    if (relative()) {
      near_q = with(content_vector_);
      near_bias = position_logits(with(position_vector_), tables.tokens);
      if (summaries.keys.defined()) far_bias = position_logits(scaled, tables.summaries);
    }
    const ListedAttentionResult tokens = listed_attention({near_q, keys, values, near_bias}, near);
    if (!summaries.keys.defined()) return tokens.y;
    return joint_softmax(
               tokens, listed_attention({scaled, summaries.keys, summaries.values, far_bias}, far))
        .y;
  }

  // The vectors [L,H,K] of the distances 0, 1, ... of the L places of lists.
  Variable distances(const WideMap& map, int64_t L, const Variable& like) const {
    const int64_t E = options().width;
    const Device device = like.value().device();
    const Variable zeros(Tensor::zeros({1, L, E}, like.dtype(), device));
    Variable sinusoids = add_sinusoidal(zeros, counted_positions(1, L, 0, device));
    if (params_.sinusoids == "halves") {
      sinusoids = reshape(transpose(reshape(sinusoids, {L, E / 2, 2}), 1, 2), {1, L, E});
    }
    return reshape(map(sinusoids), {L, options().heads, options().head_width()});
  }

  // `count_` vectors of each row of keys and values [rows,N,H,.] by logits [rows,N,H,count].
  Compressed compress(const Variable& k, const Variable& v, const Variable& logits,
                      const ChunkMasks& masks, int64_t B) const {
    SlotAttentionContext at;
    at.key_mask = masks.tokens;
    const SlotMemory memory = slot_attention_memory({{}, k, v, logits}, at);
    const auto brought = [&](const Variable& x) {
      const Variable rows = transpose(x, 1, 2);  // [rows,count,H,.]
      return summary_norm_(
          reshape(rows, {B, rows.size(0) / B * count_, rows.size(2), rows.size(3)}));
    };
    return {brought(memory.keys), brought(memory.values), masks.chunks};
  }
  Variable compression_logits(const MixInput& input, DType dtype) const {
    const Variable logits = compress_(input.x);
    return as_dtype(reshape(logits, {logits.size(0), logits.size(1), options().heads, count_}),
                    dtype);
  }

  MixResult noncausal(const MixInput& input, const MixerContext& context) const {
    const int64_t B = input.q.size(0), T = input.q.size(1);
    const DType dtype = sum_dtype(input.q.dtype());
    const Device device = input.q.value().device();
    const Variable k = token_norm_(as_dtype(input.k, dtype));
    const Variable v = token_norm_(as_dtype(input.v, dtype));
    const KeyLists near = window(0, T, 0);
    ListedAttentionContext at = attention(key_lists(near, device), near.group, "window", context);
    at.key_mask = context.key_mask;
    Compressed summaries;
    ListedAttentionContext far;
    if (count_ > 0) {
      summaries = compress(k, v, compression_logits(input, dtype),
                           chunk_masks(context.key_mask, B, T, T, count_, device), B);
      KeyLists all;
      all.group = T;
      all.lists = 1;
      all.length = all.keys = count_;
      far = attention(key_lists(all, device), T, "summaries", context);
      far.key_mask = summaries.valid;
    }
    const Variable y = read(as_dtype(input.q, dtype), k, v, at, summaries, far);
    return {as_dtype(y, input.q.dtype()), {}};
  }

  // The state that null tokens leave: their keys and values are zeros before the norms.
  MixerState null_state(int64_t B, DType dtype, Device device) const {
    const int64_t keep = kept(params_.null_tokens);
    const int64_t summaries = params_.null_tokens / params_.chunk * count_;
    const auto zeros = [&](int64_t n) {
      return Variable(
          Tensor::zeros({B, n, options().heads, options().head_width()}, dtype, device));
    };
    const auto all_valid = [&](int64_t n) {
      return mask_to_state(Tensor::full({B, n}, 1, DType::u8, device));
    };
    const Variable summary = summary_norm_(zeros(summaries));
    MixerState state{
        {"chunk_k", summary}, {"chunk_v", summary}, {"chunk_valid", all_valid(summaries)}};
    if (keep == 0) return state;
    state["k"] = state["v"] = token_norm_(zeros(keep));
    state["valid"] = all_valid(keep);
    return state;
  }

  MixResult causal(const MixInput& input, const MixerContext& context,
                   const MixerState& given) const {
    const MixerState state =
        given.empty() && params_.null_tokens > 0
            ? null_state(input.q.size(0), sum_dtype(input.q.dtype()), input.q.value().device())
            : given;
    require_usage(!state.contains("packed"),
                  "longshort does not continue a row of packed documents; give each a row of its "
                  "own");
    if (requested_places(state) > 0) return placed_step(input, context, state);
    const int64_t B = input.q.size(0), T = input.q.size(1), l = params_.chunk;
    const DType dtype = sum_dtype(input.q.dtype());
    const Device device = input.q.value().device();
    const auto size = [&](const char* name) {
      const auto found = state.find(name);
      return found == state.end() ? int64_t{0} : found->second.size(1);
    };
    // Finished summaries, tokens of the open chunk, and tokens that windows reach.
    const int64_t finished = size("chunk_k"), open = size("open_k"), past = size("k");
    const int64_t first = finished / count_ * l + open, after = first + T;
    const auto joined = [&](const char* name, const Variable& current) {
      return carry_tokens(carried(state, name, dtype), as_dtype(current, dtype), -1);
    };
    const auto mask_of = [&](const char* name, int64_t before, int64_t tokens) {
      return carry_mask(mask_from_state(state, name), context.key_mask, {}, B, before, T, tokens,
                        device);
    };
    const bool masked = !state.empty() || context.key_mask.defined();
    const Variable keys = joined("k", token_norm_(as_dtype(input.k, dtype)));
    const Variable values = joined("v", token_norm_(as_dtype(input.v, dtype)));
    ListedAttentionContext near =
        attention(key_lists(window(first, T, past), device), 1, "window", context);
    if (masked) near.key_mask = mask_of("valid", past, -1);

    const Variable open_k = joined("open_k", input.k), open_v = joined("open_v", input.v);
    const Variable logits = joined("open_logits", compression_logits(input, dtype));
    const int64_t complete = (open + T) / l * l, n = complete / l;
    Compressed all{carried(state, "chunk_k", dtype), carried(state, "chunk_v", dtype),
                   mask_from_state(state, "chunk_valid")};
    if (n > 0) {
      const auto rows = [&](const Variable& x) { return chunk_rows(tokens_of(x, 0, complete), l); };
      Tensor mask;
      if (masked) {
        mask = tokens_of(mask_of("open_valid", open, -1), 0, complete);
      }
      const Compressed made = compress(rows(open_k), rows(open_v), rows(logits),
                                       chunk_masks(mask, B, complete, l, count_, device), B);
      all.valid = carry_mask(all.valid, made.valid, {}, B, finished, n * count_, -1, device);
      all.keys = carry_tokens(all.keys, made.keys, -1);
      all.values = carry_tokens(all.values, made.values, -1);
    }
    MixResult result;
    ListedAttentionContext far;
    if (all.keys.defined()) {
      const int64_t group = first % l == 0 ? l : 1;
      const KeyLists lists = completed(first, group, T, all.keys.size(1));
      far = attention(key_lists(lists, device), group, "summaries", context);
      far.key_mask = all.valid;
      result.state = {{"chunk_k", all.keys},
                      {"chunk_v", all.values},
                      {"chunk_valid", mask_to_state(all.valid)}};
    }
    result.y =
        as_dtype(read(as_dtype(input.q, dtype), keys, values, near, all, far), input.q.dtype());
    if (const int64_t keep = kept(after); keep > 0) {
      result.state["k"] = carry_tokens({}, keys, keep);
      result.state["v"] = carry_tokens({}, values, keep);
      result.state["valid"] = mask_to_state(mask_of("valid", past, keep));
    }
    if (const int64_t rest = after % l; rest > 0) {
      result.state["open_k"] = carry_tokens({}, open_k, rest);
      result.state["open_v"] = carry_tokens({}, open_v, rest);
      result.state["open_logits"] = carry_tokens({}, logits, rest);
      result.state["open_valid"] = mask_to_state(mask_of("open_valid", open, rest));
    }
    return result;
  }

  // causal() of one token, whose state has the places that were asked for. A finished chunk is
  // first read by the next token. The state keeps the vectors of distances, which are then those of
  // every step.
  MixResult placed_step(const MixInput& input, const MixerContext& context,
                        const MixerState& state) const {
    const PlacedStep step("longshort", input.q, context, state);
    const int64_t B = input.q.size(0), l = params_.chunk, null = params_.null_tokens;
    const int64_t past = std::max<int64_t>(1, params_.window - 1);
    const int64_t open = std::max<int64_t>(1, l - 1);
    const int64_t chunks = std::max<int64_t>(1, (null + step.places()) / l) * count_;
    const DType dtype = sum_dtype(input.q.dtype());
    const Device device = input.q.value().device();
    const Variable q = as_dtype(input.q, dtype);
    const Variable k = as_dtype(input.k, dtype), v = as_dtype(input.v, dtype);
    const Variable keys = step.with_past("k", token_norm_(k), past);
    const Variable values = step.with_past("v", token_norm_(v), past);
    const Variable open_k = step.with_past("open_k", k, open);
    const Variable open_v = step.with_past("open_v", v, open);
    const Variable logits = step.with_past("open_logits", compression_logits(input, dtype), open);
    const Tensor valid = step.mask_with_past("valid", past);
    const Tensor open_valid = step.mask_with_past("open_valid", open);
    Compressed all{step.held("chunk_k", k, chunks, dtype), step.held("chunk_v", v, chunks, dtype),
                   step.held_mask("chunk_valid", chunks)};
    const auto listed = [&](const KeyLists& lists, const char* part, const Tensor& mask) {
      ListedAttentionContext at =
          attention(key_lists(step.at_position(lists), device), 1, part, context);
      at.key_mask = mask;
      return at;
    };
    MixResult result;
    Tables tables;
    if (relative()) {
      const auto table = [&](const char* name, const WideMap& map, int64_t L) {
        Variable& kept = result.state[name];
        const auto found = state.find(name);
        const bool known = found != state.end() && found->second.size(1) == L;
        kept = known ? as_dtype(found->second, dtype)
                     : reshape(distances(map, L, q), {1, L, q.size(2), q.size(3)});
        return reshape(kept, {L, q.size(2), q.size(3)});
      };
      tables = {table("distances", positions_, params_.window),
                table("chunk_distances", chunk_positions_, chunks)};
    }
    result.y = as_dtype(read(q, keys, values, listed(window(null, 1, past), "window", valid), all,
                             listed(completed(null, 1, 1, chunks), "summaries", all.valid), tables),
                        input.q.dtype());
    if (step.ends_chunk(l)) {
      const auto rows = [&](const Variable& x) { return chunk_rows(carry_tokens({}, x, l), l); };
      const ChunkMasks masks = chunk_masks(step.last(open_valid, l), B, l, l, count_, device);
      const Compressed made = compress(rows(open_k), rows(open_v), rows(logits), masks, B);
      all = {carry_tokens(all.keys, made.keys, chunks),
             carry_tokens(all.values, made.values, chunks),
             step.pushed(all.valid, made.valid, count_)};
    }
    result.state.merge(MixerState{{"chunk_k", all.keys},
                                  {"chunk_v", all.values},
                                  {"chunk_valid", mask_to_state(all.valid)},
                                  {"k", carry_tokens({}, keys, past)},
                                  {"v", carry_tokens({}, values, past)},
                                  {"valid", mask_to_state(step.last(valid, past))},
                                  {"open_k", carry_tokens({}, open_k, open)},
                                  {"open_v", carry_tokens({}, open_v, open)},
                                  {"open_logits", carry_tokens({}, logits, open)},
                                  {"open_valid", mask_to_state(step.last(open_valid, open))}});
    step.finish(result.state, l);
    return result;
  }

  // Rows of packed documents, which leave no decode state.
  MixResult packed(const MixInput& input, const MixerContext& context,
                   const MixerState& state) const {
    require_usage(state.empty(),
                  "longshort does not continue a row with packed documents; begin a row with them");
    require_usage(
        params_.null_tokens == 0,
        "longshort puts null tokens before a row, not before each of its documents; do not "
        "pack documents, or set null_tokens: 0");
    const int64_t B = input.q.size(0), T = input.q.size(1);
    const DType dtype = sum_dtype(input.q.dtype());
    const Variable k = as_dtype(input.k, dtype), v = as_dtype(input.v, dtype);
    const PackedChunks plan = packed_chunks(context.segments, params_.chunk);
    ListedAttentionContext near =
        attention(packed_lists(window(0, T, 0), plan), 1, "window", context);
    near.key_mask = context.key_mask;
    Compressed summaries;
    ListedAttentionContext far;
    if (plan.slots > 0) {
      summaries = compress(packed_rows(k, plan), packed_rows(v, plan),
                           packed_rows(compression_logits(input, dtype), plan),
                           packed_masks(context.key_mask, plan, count_), B);
      const KeyLists lists = completed(0, 1, T, plan.slots * count_);
      far = attention(packed_lists(lists, plan), 1, "summaries", context);
      far.key_mask = summaries.valid;
    }
    const Variable y =
        read(as_dtype(input.q, dtype), token_norm_(k), token_norm_(v), near, summaries, far);
    return {as_dtype(y, input.q.dtype()),
            {{"packed", Variable(Tensor::zeros({B, 1}, DType::i64, input.q.value().device()))}}};
  }

  LongshortParams params_;
  int64_t count_;
  double scale_;
  WideMap compress_, positions_, chunk_positions_;
  WideNorm token_norm_, summary_norm_;
  Variable content_vector_, position_vector_;
};

}  // namespace linnet
