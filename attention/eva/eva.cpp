// EVA: parameters, mixer, registry entry.
#include "attention/eva/eva.h"

#include <numbers>

#include "attention/define.h"
#include "attention/eva/eva_definition.h"
#include "attention/head_map.h"
#include "attention/joint/chunks.h"
#include "attention/joint/joint_softmax.h"
#include "attention/joint/packed_chunks.h"
#include "attention/lara/landmarks.h"
#include "attention/lara/noise.h"
#include "attention/primitives/slot_attention.h"
#include "autograd/pooling.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lm", "the paper's language modelling", {{"window", "128"}, {"chunk", "8"}}}};

// Summaries of chunks [B,n,H,.], and which of them there are (u8 [B,n]; undefined: all).
struct Summaries {
  Variable keys, values;
  Tensor valid;
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
    cost.mixing = rows * width * (2 * pairs + static_cast<double>(causal ? chunks * l : T));
    cost.projections = 2 * rows * static_cast<double>(chunks) * width * static_cast<double>(K);
    const auto element = static_cast<double>(size_of(shape.dtype));
    cost.bytes = 2 * static_cast<double>(K * K + (params_.norm ? 3 : 1) * K) * element;
    if (!causal) return cost;
    const double summary = 2 * width * static_cast<double>(size_of(sum_dtype(shape.dtype)));
    cost.bytes += rows * static_cast<double>(chunks) * (summary + sizeof(int64_t));
    cost.bytes += rows * static_cast<double>(kept(T)) * (2 * width * element + sizeof(int64_t));
    cost.bytes += rows * static_cast<double>(T % l) * width * element;
    return cost;
  }

 private:
  // The released code fills the last window up.
  int64_t padded(int64_t T) const {
    return params_.compat ? (T + params_.window - 1) / params_.window * params_.window : T;
  }
  // Tokens that windows of later ones reach, after T of them.
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
    const Variable y = joint_softmax(listed_attention({q, input.k, input.v, {}}, near),
                                     listed_attention({q, made.keys, made.values, {}}, far));
    return {as_dtype(y, input.q.dtype()), {}};
  }

  MixResult causal(const MixInput& input, const MixerContext& context,
                   const MixerState& state) const {
    require_usage(!state.contains("packed"),
                  "eva does not continue a row of packed documents; give each a row of its own");
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
    ListedAttentionResult read = listed_attention({q, keys, values, {}}, near);

    MixResult result;
    const Variable queries = carry_tokens(carried(state, "q", input.q.dtype()), input.q, -1);
    const int64_t complete = (open + T) / l * l;
    Summaries all{carried(state, "chunk_k", dtype), carried(state, "chunk_v", dtype),
                  mask_from_state(state, "chunk_valid")};
    if (complete > 0) {
      const auto begun = [&](const Variable& x) {
        const Variable last = carry_tokens({}, x, open + T);
        return as_dtype(take_tokens(last, 0, complete), dtype);
      };
      Tensor mask;
      if (near.key_mask.defined()) {
        mask = take_tokens(Variable(mask_of_last(open + T)), 0, complete).value();
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
      read.y = joint_softmax(read, listed_attention({q, all.keys, all.values, {}}, far));
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

  // Rows of packed documents, which leave nothing that a next call could continue.
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
    ListedAttentionResult read = listed_attention({q, input.k, input.v, {}}, near);
    if (plan.slots > 0) {
      const auto rows = [&](const Variable& x) { return as_dtype(packed_rows(x, plan), dtype); };
      const Summaries made = summarise(rows(input.q), rows(input.k), rows(input.v),
                                       packed_masks(context.key_mask, plan, 1), B, 0, context);
      ListedAttentionContext far =
          attention(completed(0, 1, T, plan.slots), "summaries", input, context, &plan);
      far.key_mask = made.valid;
      read.y = joint_softmax(read, listed_attention({q, made.keys, made.values, {}}, far));
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

  // Of all chunks of a whole row of q, k, v [B,T,H,.], the last one filled up.
  Summaries summarise_filled(const Variable& q, const Variable& k, const Variable& v,
                             const MixerContext& context) const {
    const int64_t B = q.size(0), T = q.size(1), rest = padded(T) - T;
    const Device device = q.value().device();
    const auto rows = [&](const Variable& x) {
      if (rest == 0) return chunk_rows(x, params_.chunk);
      const Tensor zeros = Tensor::zeros({B, rest, x.size(2), x.size(3)}, x.dtype(), device);
      return chunk_rows(carry_tokens(x, Variable(zeros), -1), params_.chunk);
    };
    Tensor valid = context.key_mask;
    if (rest > 0) {
      const Tensor none = Tensor::zeros({B, rest}, DType::u8, device);
      valid = carry_mask(valid, none, {}, B, T, rest, -1, device);
    }
    const ChunkMasks masks = chunk_masks(valid, B, padded(T), params_.chunk, 1, device);
    return summarise(rows(q), rows(k), rows(v), masks, B, 0, context);
  }

  // Of chunks of B rows, q, k, v [B n,l,H,.] in the dtype of sums; `first`: the number of the
  // first.
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

  // Standard normal numbers like x [B,n,H,K], of each example and chunk.
  Variable noise(const Variable& x, int64_t first, const MixerContext& context) const {
    const auto make = [&] {
      return landmark_noise(draw_key(context).at("noise"), context.place.examples, x.value(),
                            first * x.size(2));
    };
    // Draws that are given or noted pass through the host, others are made where they are needed.
    if (context.record == nullptr) return Variable(make());
    const Tensor draw = drawn(context, "noise", x.shape(), [&] { return make().to(Device{}); });
    return Variable(draw.to(x.dtype()).to(x.value().device()));
  }

  EvaParams params_;
  double scale_;
  HeadMap query_map_, key_map_;
};

}  // namespace

int64_t EvaParams::before(Form form) const {
  if (!overlap) return 0;
  return form == Form::causal ? window : std::max<int64_t>(window / 2, 1);
}
int64_t EvaParams::behind(Form form) const {
  return form == Form::causal ? 0 : before(form);
}

void EvaParams::describe(ConfigDescription<EvaParams>& d) {
  describe_preset(d, kPresets);
  d.field("window", &EvaParams::window, "tokens of a block whose keys are read exactly")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("chunk", &EvaParams::chunk, "tokens of a chunk that is summarised; divides the window")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("overlap", &EvaParams::overlap,
          "a block reads the block before it as well (causal), or half a block on each side");
  d.field("norm", &EvaParams::norm, "a layer norm behind the maps of the chunks' means");
  d.field("noise", &EvaParams::noise, "training draws proposals around the chunks' means");
  d.field("compat", &EvaParams::compat,
          "means are divided by the length of the chunk, padded tokens included, and chunks of "
          "padding stay in the soft-max, as in the released code");
  describe_scale(d, "factor of q . k and of the proposals' logits; null: 1/sqrt(K)");
  describe_dropout(d);
}

void EvaParams::validate(const ConfigNode& at) const {
  if (window % chunk == 0) return;
  throw located_error(at.location_of("chunk"), "a window is made of whole chunks, but ", chunk,
                      " does not divide the window of ", window, " tokens; take a divisor of it");
}

MixerTraits EvaParams::traits(MixerTraits traits) const {
  traits.depends_on_length = compat;
  return traits;
}

Mechanism eva_mechanism() {
  Mechanism facts;
  facts.name = "eva";
  facts.title = "EVA: a window of tokens and summaries of chunks in one soft-max";
  facts.equation =
      "K_c = LN(W mean k), Q_c = LN(W' mean q) over chunk c, w_c = (Q_c + K_c) / 2 (causal: Q_c + "
      "K_c; training: + noise)\n"
      "b_c = sum_j softmax_j(s (w_c . k_j - |k_j|^2 / 2)) v_j over the tokens of chunk c\n"
      "y_i = sum p v_j + sum p b_c, p one soft-max over s q_i . k_j of the block that holds i "
      "(causal: j <= i)\n"
      "and s q_i . K_c of all chunks (causal: those before that of i)";
  facts.complexity = "time 2 B H T (w + T / l) K, memory of decoding 2 B H (w + T / l) K";
  facts.sources = "Zheng et al. 2023, Efficient Attention via Control Variates";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T^2 / l";
  facts.traits.exempt["packing"] =
      "a row of packed documents (causal) leaves no state to continue from: a unit test compares "
      "it";
  facts.presets = kPresets;
  facts.variants = {"{window: 12, chunk: 4, overlap: true}",
                    "{window: 6, chunk: 3, compat: true, noise: false, scale: 1}"};
  facts.cost_cases = {"{window: 128, chunk: 32}"};
  const auto identity = [](const std::string& name, std::vector<double>& values) {
    if (!name.ends_with("_map.weight") && !name.ends_with("_map.bias")) return;
    std::fill(values.begin(), values.end(), 0);
    const auto width = static_cast<size_t>(std::sqrt(static_cast<double>(values.size())));
    if (name.ends_with("_map.bias")) return;
    for (size_t i = 0; i < width; ++i) values[i * (width + 1)] = 1;
  };
  facts.limits = {{"chunks and windows of one token without a norm and with maps that change "
                   "nothing give soft-max attention",
                   "{window: 1, chunk: 1, norm: false}",
                   {Form::causal},
                   identity,
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }},
                  {"equal values are returned as they are",
                   "{window: 8, chunk: 4}",
                   {Form::noncausal, Form::causal},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "v.weight") std::fill(values.begin(), values.end(), 0);
                   },
                   [](const ReferenceSequence<double>& s) { return s.v; }}};
  return define_mechanism<EvaParams, EvaMixer>(
      std::move(facts), [](const EvaParams& params, const auto& sequence) {
        return eva_definition::definition(params, sequence);
      });
}

}  // namespace linnet
