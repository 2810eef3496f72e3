// EVA's mixer. For eva.cpp only.
#pragma once

#include <memory>
#include <mutex>
#include <numbers>

#include "attention/common/head_map.h"
#include "attention/common/joint/block_bias.h"
#include "attention/common/joint/joint_softmax.h"
#include "attention/common/joint/overlapping_chunks.h"
#include "attention/common/joint/packed_chunks.h"
#include "attention/common/landmarks/landmarks.h"
#include "attention/common/landmarks/noise.h"
#include "attention/common/mixer_support.h"
#include "attention/common/placed_step.h"
#include "attention/common/token_slices.h"
#include "attention/eva/eva.h"
#include "attention/primitives/slot_attention/slot_attention.h"
#include "autograd/embedding.h"
#include "autograd/pooling.h"
#include "layers/cache_places.h"

namespace linnet {

// Summaries of chunks [B,n,H,.], and the mask of those that exist (u8 [B,n]; undefined: all).
struct Summaries {
  Variable keys, values;
  Tensor valid;
};

// The buckets of all distances of a window, copied to the device once.
class DistanceIds {
 public:
  explicit DistanceIds(const std::vector<int32_t>& ids)
      : here_(Tensor::from(ids, {1, std::ssize(ids)})) {}
  Tensor on(Device device) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!there_.defined() || !(there_.device() == device)) there_ = here_.to(device);
    return there_;
  }

 private:
  Tensor here_;
  mutable std::mutex mutex_;
  mutable Tensor there_;
};

class EvaMixer : public AttentionMixer {
 public:
  EvaMixer(const EvaParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        scale_(params.scale.value_or(default_scale(options))) {
    const int64_t K = options.head_width();
    const Initializer init = init_xavier(1 / std::numbers::sqrt2, K, K);
    query_map_ = HeadMap(scope.own.child("query_map"), K, init, params.norm);
    key_map_ = HeadMap(scope.own.child("key_map"), K, init, params.norm);
    if (!params.distance_bias) return;
    // Causal: one for all heads, as in the released code.
    bias_ = scope.own.parameter("distance_bias", {params.buckets(options.form), bias_heads()},
                                init_normal(1));
    const BlockDistances distances = block_distances(window(0, 0, 0));
    std::vector<int32_t> ids;
    for (int64_t d = distances.first; d < distances.first + distances.count; ++d) {
      ids.push_back(static_cast<int32_t>(params.bucket(options.form, d)));
    }
    ids_ = std::make_shared<DistanceIds>(ids);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    if (options().form == Form::causal) {
      return context.segments.defined() ? packed(input, context, state)
                                        : causal(input, context, state);
    }
    require_usage(!context.segments.defined(),
                  "eva without causality counts its chunks from the beginning of the row; do not "
                  "pack documents into rows");
    return noncausal(input, context);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const bool causal = options().form == Form::causal;
    const int64_t T = shape.queries, B = shape.batch, l = params_.chunk, K = options().head_width();
    const int64_t E = options().width;
    const int64_t chunks = causal ? T / l : (padded(T) + l - 1) / l;
    int64_t summaries = causal ? 0 : T * chunks;
    for (int64_t t = 0; causal && t < T; ++t) summaries += t / l;
    const double pairs = listed_pairs(window(0, T, 0), T) + static_cast<double>(summaries);
    const auto rows = static_cast<double>(B), width = static_cast<double>(E);
    MixerCost cost;
    // Both products of a pair, and the sum of a token's value in its chunk.
    int64_t summed = chunks * l;
    if (!causal) {
      summed = 0;
      for (int64_t c = 0; c < chunks; ++c) summed += tokens_of_chunk(c, T);
    }
    cost.mixing = rows * width * (2 * pairs + static_cast<double>(summed));
    cost.projections = 2 * rows * static_cast<double>(chunks) * width * static_cast<double>(K);
    const auto element = static_cast<double>(size_of(shape.dtype));
    cost.bytes = 2 * static_cast<double>(K * K + (params_.norm ? 3 : 1) * K) * element;
    if (params_.distance_bias) {
      cost.bytes += static_cast<double>(params_.buckets(options().form) * bias_heads()) * element;
    }
    if (!causal) return cost;
    const double summary = 2 * width * static_cast<double>(size_of(sum_dtype(shape.dtype)));
    cost.bytes += rows * static_cast<double>(chunks) * (summary + sizeof(int64_t));
    cost.bytes += rows * static_cast<double>(kept(T)) * (2 * width * element + sizeof(int64_t));
    cost.bytes += rows * static_cast<double>(T % l) * width * element;
    return cost;
  }

 private:
  int64_t bias_heads() const { return options().form == Form::causal ? 1 : options().heads; }
  // Biases of the lists of T queries; undefined without.
  Variable distance_bias(const KeyLists& lists, int64_t T, const Tensor& documents,
                         const Variable& like) const {
    if (!params_.distance_bias) return {};
    const Variable values =
        embedding(ids_->on(like.value().device()), as_dtype(bias_, like.dtype()), scale_);
    return block_bias(reshape(values, {values.size(1), values.size(2)}), lists, T, documents);
  }

  // The released code pads the last window.
  int64_t padded(int64_t T) const {
    return params_.compat ? (T + params_.window - 1) / params_.window * params_.window : T;
  }
  // Number of the T tokens that chunk c, with its overlap, holds.
  int64_t tokens_of_chunk(int64_t c, int64_t T) const {
    const int64_t l = params_.chunk, more = params_.chunk_overlap;
    return std::max<int64_t>(0,
                             std::min(T, (c + 1) * l + more) - std::max<int64_t>(0, c * l - more));
  }
  // Number of the T tokens so far that windows of later tokens reach.
  int64_t kept(int64_t T) const {
    const int64_t begun = T % params_.window;
    return begun + std::min(params_.before(Form::causal), T - begun);
  }

  // The lists of T queries that follow `first` tokens, of which `past` are kept.
  KeyLists window(int64_t first, int64_t T, int64_t past) const {
    KeyLists lists;
    lists.kind = KeyLists::Kind::block;
    lists.size = params_.window;
    lists.before = params_.before(options().form);
    lists.causal = options().form == Form::causal;
    lists.first = first;
    lists.group = lists.causal ? 1 : params_.window;
    lists.offset = first - past;
    lists.lists = (T + lists.group - 1) / lists.group;
    lists.length = lists.before + params_.window + params_.behind(options().form);
    lists.keys = past + T;
    return lists;
  }

  ListedAttentionContext attention(const KeyLists& lists, const char* part, const MixInput& input,
                                   const MixerContext& context,
                                   const PackedChunks* packed = nullptr) const {
    ListedAttentionContext at;
    at.options.scale = scale_;
    at.options.group = lists.group;
    if (context.training) {
      at.options.dropout = params_.dropout.value_or(options().dropout);
      at.options.dropout_key = draw_key(context).at(part);
    }
    at.index = packed != nullptr ? packed_lists(lists, *packed)
                                 : key_lists(lists, input.q.value().device());
    at.query_mask = context.key_mask;
    at.place = context.place;
    return at;
  }

  MixResult noncausal(const MixInput& input, const MixerContext& context) const {
    const int64_t T = input.q.size(1);
    const DType dtype = sum_dtype(input.q.dtype());
    const Variable q = as_dtype(input.q, dtype);
    ListedAttentionContext near = attention(window(0, T, 0), "window", input, context);
    near.key_mask = context.key_mask;
    const Summaries made =
        summarise_filled(q, as_dtype(input.k, dtype), as_dtype(input.v, dtype), context);
    KeyLists all;
    all.group = std::max<int64_t>(T, 1);
    all.lists = 1;
    all.length = all.keys = made.keys.size(1);
    ListedAttentionContext far = attention(all, "summaries", input, context);
    far.key_mask = made.valid;
    const Variable y =
        joint_softmax(
            listed_attention({q, input.k, input.v, distance_bias(window(0, T, 0), T, {}, q)}, near),
            listed_attention({q, made.keys, made.values, {}}, far))
            .y;
    return {as_dtype(y, input.q.dtype()), {}};
  }

  MixResult causal(const MixInput& input, const MixerContext& context,
                   const MixerState& state) const {
    require_usage(!state.contains("packed"),
                  "eva does not continue a row of packed documents; give each a row of its own");
    if (requested_places(state) > 0) return placed_step(input, context, state);
    const int64_t B = input.q.size(0), T = input.q.size(1), l = params_.chunk;
    const DType dtype = sum_dtype(input.q.dtype());
    const Device device = input.q.value().device();
    const auto size = [&](const char* name) {
      const auto found = state.find(name);
      return found == state.end() ? int64_t{0} : found->second.size(1);
    };
    // Chunks that are finished, and tokens of the open one.
    const int64_t finished = size("chunk_k"), open = size("q"), past = size("k");
    const int64_t first = finished * l + open, after = first + T;
    const Variable past_k = carried(state, "k", input.k.dtype());
    const Variable past_v = carried(state, "v", input.v.dtype());
    const Variable keys = carry_tokens(past_k, input.k, -1);
    const Variable values = carry_tokens(past_v, input.v, -1);
    const Tensor past_valid = mask_from_state(state, "valid");
    const auto mask_of_last = [&](int64_t tokens) {
      return carry_mask(past_valid, context.key_mask, {}, B, past, T, tokens, device);
    };
    const Variable q = as_dtype(input.q, dtype);
    ListedAttentionContext near = attention(window(first, T, past), "window", input, context);
    if (past > 0 || context.key_mask.defined()) near.key_mask = mask_of_last(past + T);
    ListedAttentionResult read =
        listed_attention({q, keys, values, distance_bias(window(first, T, past), T, {}, q)}, near);

    MixResult result;
    const Variable queries = carry_tokens(carried(state, "q", input.q.dtype()), input.q, -1);
    const int64_t complete = (open + T) / l * l;
    Summaries all{carried(state, "chunk_k", dtype), carried(state, "chunk_v", dtype),
                  mask_from_state(state, "chunk_valid")};
    if (complete > 0) {
      const auto begun = [&](const Variable& x) {
        const Variable last = carry_tokens({}, x, open + T);
        return as_dtype(tokens_of(last, 0, complete), dtype);
      };
      Tensor mask;
      if (near.key_mask.defined()) {
        mask = tokens_of(mask_of_last(open + T), 0, complete);
      }
      const int64_t n = complete / l;
      const auto rows = [&](const Variable& x) { return chunk_rows(begun(x), l); };
      const Summaries made =
          summarise(rows(queries), rows(keys), rows(values),
                    chunk_masks(mask, B, complete, l, 1, device), B, finished, context);
      all.valid = carry_mask(all.valid, made.valid, {}, B, finished, n, -1, device);
      all.keys = carry_tokens(all.keys, made.keys, -1);
      all.values = carry_tokens(all.values, made.values, -1);
    }
    if (all.keys.defined()) {
      ListedAttentionContext far =
          attention(completed(first, first % l == 0 ? l : 1, T, all.keys.size(1)), "summaries",
                    input, context);
      far.key_mask = all.valid;
      read = joint_softmax(read, listed_attention({q, all.keys, all.values, {}}, far));
      result.state = {{"chunk_k", all.keys},
                      {"chunk_v", all.values},
                      {"chunk_valid", mask_to_state(all.valid)}};
    }
    result.y = as_dtype(read.y, input.q.dtype());
    if (const int64_t keep = kept(after); keep > 0) {
      result.state["k"] = carry_tokens({}, keys, keep);
      result.state["v"] = carry_tokens({}, values, keep);
      result.state["valid"] = mask_to_state(mask_of_last(keep));
    }
    if (after % l > 0) result.state["q"] = carry_tokens({}, queries, after % l);
    return result;
  }

  // causal() of one token, whose state has the places that were asked for. A finished chunk is
  // first read by the next token.
  MixResult placed_step(const MixInput& input, const MixerContext& context,
                        const MixerState& state) const {
    const PlacedStep step("eva", input.q, context, state);
    const int64_t B = input.q.size(0), l = params_.chunk;
    const int64_t past = std::max<int64_t>(1, params_.window - 1 + params_.before(options().form));
    const int64_t open = std::max<int64_t>(1, l - 1);
    const int64_t chunks = std::max<int64_t>(1, step.places() / l);
    const DType dtype = sum_dtype(input.q.dtype());
    const Variable keys = step.with_past("k", input.k, past), q = as_dtype(input.q, dtype);
    const Variable values = step.with_past("v", input.v, past);
    const Variable queries = step.with_past("q", input.q, open);
    const Tensor valid = step.mask_with_past("valid", past);
    Summaries all{step.held("chunk_k", input.k, chunks, dtype),
                  step.held("chunk_v", input.v, chunks, dtype),
                  step.held_mask("chunk_valid", chunks)};
    const KeyLists lists = step.at_position(window(0, 1, past));
    ListedAttentionContext near = attention(lists, "window", input, context);
    near.key_mask = valid;
    ListedAttentionContext far =
        attention(step.at_position(completed(0, 1, 1, chunks)), "summaries", input, context);
    far.key_mask = all.valid;
    const Variable y =
        joint_softmax(listed_attention({q, keys, values, distance_bias(lists, 1, {}, q)}, near),
                      listed_attention({q, all.keys, all.values, {}}, far))
            .y;
    if (step.ends_chunk(l)) {
      const auto rows = [&](const Variable& x) {
        return chunk_rows(as_dtype(carry_tokens({}, x, l), dtype), l);
      };
      const ChunkMasks masks =
          chunk_masks(step.last(valid, l), B, l, l, 1, input.q.value().device());
      const Summaries made =
          summarise(rows(queries), rows(keys), rows(values), masks, B, 0, context);
      all = {carry_tokens(all.keys, made.keys, chunks),
             carry_tokens(all.values, made.values, chunks), step.pushed(all.valid, made.valid, 1)};
    }
    MixResult result{as_dtype(y, input.q.dtype()), {}};
    result.state = {{"chunk_k", all.keys},
                    {"chunk_v", all.values},
                    {"chunk_valid", mask_to_state(all.valid)},
                    {"k", carry_tokens({}, keys, past)},
                    {"v", carry_tokens({}, values, past)},
                    {"valid", mask_to_state(step.last(valid, past))},
                    {"q", carry_tokens({}, queries, open)}};
    step.finish(result.state, l);
    return result;
  }

  // Rows of packed documents, which leave no decode state.
  MixResult packed(const MixInput& input, const MixerContext& context,
                   const MixerState& state) const {
    require_usage(state.empty(),
                  "eva does not continue a row with packed documents; begin a row "
                  "with them");
    const int64_t B = input.q.size(0), T = input.q.size(1), l = params_.chunk;
    const DType dtype = sum_dtype(input.q.dtype());
    const Variable q = as_dtype(input.q, dtype);
    const PackedChunks plan = packed_chunks(context.segments, l);
    ListedAttentionContext near = attention(window(0, T, 0), "window", input, context, &plan);
    near.key_mask = context.key_mask;
    ListedAttentionResult read = listed_attention(
        {q, input.k, input.v, distance_bias(window(0, T, 0), T, plan.documents, q)}, near);
    if (plan.slots > 0) {
      const auto rows = [&](const Variable& x) { return as_dtype(packed_rows(x, plan), dtype); };
      const Summaries made = summarise(rows(input.q), rows(input.k), rows(input.v),
                                       packed_masks(context.key_mask, plan, 1), B, 0, context);
      ListedAttentionContext far =
          attention(completed(0, 1, T, plan.slots), "summaries", input, context, &plan);
      far.key_mask = made.valid;
      read = joint_softmax(read, listed_attention({q, made.keys, made.values, {}}, far));
    }
    return {as_dtype(read.y, input.q.dtype()),
            {{"packed", Variable(Tensor::zeros({B, 1}, DType::i64, input.q.value().device()))}}};
  }

  // The lists of summaries of T queries that follow `first` tokens.
  KeyLists completed(int64_t first, int64_t group, int64_t T, int64_t summaries) const {
    KeyLists lists;
    lists.kind = KeyLists::Kind::completed;
    lists.size = params_.chunk;
    lists.first = first;
    lists.group = group;
    lists.lists = (T + group - 1) / group;
    lists.length = lists.keys = summaries;
    return lists;
  }

  // Summaries of all chunks of a whole row of q, k, v [B,T,H,.], the last chunk padded.
  Summaries summarise_filled(const Variable& q, const Variable& k, const Variable& v,
                             const MixerContext& context) const {
    const int64_t B = q.size(0), T = q.size(1), rest = padded(T) - T;
    const Device device = q.value().device();
    // Places beyond the row on either side hold nothing; compat counts them all.
    const int64_t l = params_.chunk, overlap = params_.compat ? params_.chunk_overlap
                                                              : std::min(params_.chunk_overlap, T);
    const auto rows = [&](const Variable& x) {
      if (rest == 0) return overlapping_chunk_rows(x, l, overlap);
      const Tensor zeros = Tensor::zeros({B, rest, x.size(2), x.size(3)}, x.dtype(), device);
      return overlapping_chunk_rows(carry_tokens(x, Variable(zeros), -1), l, overlap);
    };
    Tensor valid = context.key_mask;
    if (rest > 0) {
      const Tensor none = Tensor::zeros({B, rest}, DType::u8, device);
      valid = carry_mask(valid, none, {}, B, T, rest, -1, device);
    }
    const ChunkMasks masks = chunk_masks(valid, B, padded(T), l, 1, device, overlap);
    return summarise(rows(q), rows(k), rows(v), masks, B, 0, context);
  }

  // Summaries of chunks of B rows, q, k, v [B n,l,H,.] in the dtype of sums; `first`: the index of
  // the first chunk.
  Summaries summarise(const Variable& q, const Variable& k, const Variable& v,
                      const ChunkMasks& masks, int64_t B, int64_t first,
                      const MixerContext& context) const {
    const int64_t rows = q.size(0), n = rows / B, l = q.size(1), H = q.size(2), K = q.size(3);
    const Device device = q.value().device();
    const auto mean = [&](const Variable& x) {
      const Variable flat = reshape(x, {rows, l, H * K});
      return reshape(mean_pool(flat, masks.tokens, params_.compat), {B, n, H, K});
    };
    const Variable key = key_map_(mean(k)), query = query_map_(mean(q));
    const double share = options().form == Form::causal ? 1 : 0.5;
    Variable proposal = weighted_sum(key, share, query, share);
    if (context.training && params_.noise) {
      proposal = add(proposal, noise(proposal, first, context));
    }
    const Tensor ones = Tensor::full({rows, H, 1}, 1, DType::f64, device);
    const Variable logits =
        landmark_logits(k, reshape(proposal, {rows, H, 1, K}), ones, masks.tokens, scale_);
    SlotAttentionContext at;
    at.key_mask = masks.tokens;
    const Variable nothing(Tensor::empty({rows, l, H, 0}, q.dtype(), device));
    const SlotMemory read = slot_attention_memory({{}, v, nothing, logits}, at);
    return {key, reshape(read.keys, {B, n, H, v.size(3)}),
            params_.compat ? Tensor() : masks.chunks};
  }

  // Standard normal values like x [B,n,H,K], keyed by example and chunk.
  Variable noise(const Variable& x, int64_t first, const MixerContext& context) const {
    const auto make = [&] {
      return landmark_noise(draw_key(context).at("noise"), context.place.examples, x.value(),
                            first * x.size(2));
    };
    // Draws that are given or noted pass through the host; others are made on the device.
    if (context.record == nullptr) return Variable(make());
    const Tensor draw = drawn(context, "noise", x.shape(), [&] { return make().to(Device{}); });
    return Variable(draw.to(x.dtype()).to(x.value().device()));
  }

  EvaParams params_;
  double scale_;
  HeadMap query_map_, key_map_;
  Variable bias_;
  std::shared_ptr<const DistanceIds> ids_;
};

}  // namespace linnet
