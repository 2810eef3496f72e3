// Longformer: parameters, mixer, literal definition, registry entry.
#include "attention/longformer/longformer.h"

#include "attention/common/mixer_support.h"
#include "attention/common/token_slices.h"
#include "attention/define.h"
#include "attention/longformer/window_lists.h"
#include "attention/primitives/listed_attention/listed_attention.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"
#include "layers/projection_bias.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"survey",
     "the survey's Long Range Arena with a class token, GLUE and images: window 2 K, the first "
     "token global, with the projections of the others",
     {}},
    {"survey_mean",
     "the survey's runs without a class token (mean of tokens, masked language models)",
     {{"global_tokens", "0"}}},
    {"original",
     "the paper's classification: projections of their own for the global token, window 512",
     {{"window", "512"}, {"global_proj", "separate"}}}};

// A projection of the global tokens' own.
struct GlobalProjection {
  Variable weight, bias;

  GlobalProjection() = default;
  GlobalProjection(const ParameterScope& scope, const MixerOptions& options, double gain)
      : weight(scope.parameter("weight", {options.width, options.width},
                               projection_init(options.init, gain, options.width, options.width))) {
    if (!options.bias) return;
    bias =
        scope.parameter("bias", {options.width}, projection_bias_init(options.init, options.width));
  }
  Variable operator()(const Variable& x, const MixerOptions& options) const {
    return reshape(linear(x, weight, bias),
                   {x.size(0), x.size(1), options.heads, options.head_width()});
  }
};

class LongformerMixer : public AttentionMixer {
 public:
  LongformerMixer(const LongformerParams& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        window_(params.width(options)),
        globals_(params.globals(options.form)) {
    if (!separate()) return;
    require_usage(options.rotary_width == 0,
                  "longformer: rotary positions are not defined for the global tokens' own "
                  "projections; use global_proj: shared");
    const double gain = std::sqrt(0.5);
    q_ = {scope.own.child("q_global"), options, gain};
    k_ = {scope.own.child("k_global"), options, gain};
    v_ = {scope.own.child("v_global"), options, gain};
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    refuse_key_positions(context, "longformer");
    BlockAttentionContext block = block_context(options(), context);
    block.options.scale = params_.scale.value_or(default_scale(options()));
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    const bool causal = options().form == Form::causal;
    if (globals_ == 0) {
      block.options = band(block.options);
      if (causal) return causal_with_cache(input, context, state, block, window_ - 1);
      return {block_attention({input.q, input.k, input.v, {}, {}, {}}, block), {}};
    }
    require_usage(!context.segments.defined(),
                  "longformer with global tokens has one set of them for each row; do not pack "
                  "documents into rows, or set global_tokens: 0");
    if (causal) return mix_causal(input, context, state, block);
    return {mix_noncausal(input, context, block), {}};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto B = static_cast<double>(shape.batch), E = static_cast<double>(options().width);
    const int64_t T = shape.queries;
    MixerCost cost = block_attention_cost(options(), band({}), window_ - 1, shape);
    if (globals_ == 0) return cost;
    const bool causal = options().form == Form::causal;
    const int64_t globals = std::min(globals_, T), others = T - globals;
    // A window among the other tokens, and the global tokens.
    cost.mixing = B * 2 * E * visible_pairs(band({}), others);
    const int64_t to_globals = others * globals;
    const int64_t of_globals = causal ? globals * (globals + 1) / 2 : globals * T;
    cost.mixing += B * 2 * E * static_cast<double>(to_globals + of_globals);
    if (causal) {
      MixerShape rest = shape;
      rest.queries = others;
      cost.bytes = kv_cache_bytes(options(), window_ - 1, rest);
      rest.queries = globals;
      cost.bytes += kv_cache_bytes(options(), kKeepAll, rest);
    }
    if (separate()) {
      cost.projections = B * static_cast<double>(globals + 2 * T) * E * E;
      cost.bytes +=
          3 * (E * E + (options().bias ? E : 0)) * static_cast<double>(size_of(shape.dtype));
    }
    return cost;
  }

 private:
  bool separate() const { return params_.separate() && globals_ > 0; }

  BlockAttentionOptions band(BlockAttentionOptions pattern) const {
    pattern.pattern = BlockPattern::band;
    pattern.causal = options().form == Form::causal;
    pattern.left = pattern.causal ? window_ - 1 : window_ / 2;
    pattern.right = window_ / 2;
    return pattern;
  }

  // Queries over lists of keys, with the other options of `block`.
  static Variable listed(const Variable& q, const Variable& k, const Variable& v,
                         const BlockAttentionContext& block, const ListsWithBias& lists,
                         int64_t group) {
    ListedAttentionContext at;
    at.options.group = group;
    at.options.scale = block.options.scale;
    at.options.dropout = block.options.dropout;
    at.options.dropout_key = block.options.dropout_key;
    at.index = lists.index;
    at.query_mask = block.query_mask;
    at.key_mask = block.key_mask;
    at.place = block.place;
    return listed_attention({q, k, v, lists.bias.defined() ? Variable(lists.bias) : Variable()}, at)
        .y;
  }

  Variable mix_noncausal(const MixInput& input, const MixerContext& context,
                         BlockAttentionContext block) const {
    const int64_t T = input.q.size(1), globals = std::min(globals_, T);
    // Global tokens read all tokens.
    Variable q = tokens_of(input.q, 0, globals), k = input.k, v = input.v;
    if (separate()) {
      require_usage(input.x.defined(),
                    "longformer: global_proj: separate projects x itself; give "
                    "x, not queries, keys and values");
      q = q_(tokens_of(input.x, 0, globals), options());
      k = k_(input.x, options());
      v = v_(input.x, options());
    }
    BlockAttentionContext all = block;
    all.cross = true;
    all.query_mask = tokens_of(context.key_mask, 0, globals);
    const Variable of_globals = block_attention({q, k, v, {}, {}, {}}, all);
    if (globals == T) return of_globals;
    const int64_t group = std::min(queries_of_list(window_), T - globals);
    const WindowLists lists{T, globals, std::min(window_ / 2, T - 1), group};
    block.query_mask = tokens_of(context.key_mask, globals, T);
    block.place.time_offset += globals;
    const Variable others = listed(tokens_of(input.q, globals, T), input.k, input.v, block,
                                   made(lists, input.q.value().device()), group);
    return join_tokens({of_globals, others});
  }

  // The state has the global tokens, and the last window of the other tokens.
  MixResult mix_causal(const MixInput& input, const MixerContext& context, const MixerState& state,
                       BlockAttentionContext block) const {
    const DType dtype = input.k.dtype();
    const Variable global_k = carried(state, "global_k", dtype);
    const Variable global_v = carried(state, "global_v", dtype);
    const Variable window_k = carried(state, "k", dtype), window_v = carried(state, "v", dtype);
    const auto tokens = [](const Variable& x) { return x.defined() ? x.size(1) : 0; };
    const int64_t B = input.q.size(0), T = input.q.size(1);
    // With dropout every query has its own list, so that draws do not depend on the split into
    // calls.
    const int64_t group =
        block.options.dropout > 0 ? 1 : std::clamp<int64_t>(T, 1, queries_of_list(window_));
    const CausalLists lists{T,
                            globals_,
                            std::min(window_, std::max<int64_t>(1, tokens(window_k) + T)),
                            tokens(global_k),
                            tokens(window_k),
                            group};
    const int64_t added = lists.new_globals(), past_globals = lists.past_globals;
    const Device device = input.q.value().device();
    const auto all = [](const Variable& globals, const Variable& window, const Variable& current) {
      return carry_tokens(window.defined() ? carry_tokens(globals, window, kKeepAll) : globals,
                          current, kKeepAll);
    };
    const Tensor global_mask = mask_from_state(state, "global_valid");
    const Tensor window_mask = mask_from_state(state, "valid");
    const Tensor past_mask = carry_mask(global_mask, window_mask, {}, B, past_globals,
                                        lists.past_window, kKeepAll, device);
    block.key_mask = carry_mask(past_mask, context.key_mask, {}, B,
                                past_globals + lists.past_window, T, kKeepAll, device);
    MixResult result;
    result.y = listed(input.q, all(global_k, window_k, input.k), all(global_v, window_v, input.v),
                      block, made(lists, device), group);
    const Tensor global_part = tokens_of(context.key_mask, 0, added);
    const Tensor window_part = tokens_of(context.key_mask, added, T);
    const auto keep = [&](const std::string& name, const Variable& globals, const Variable& window,
                          const Variable& current) {
      result.state["global_" + name] =
          carry_tokens(globals, tokens_of(current, 0, added), kKeepAll);
      result.state[name] = carry_tokens(window, tokens_of(current, added, T), window_ - 1);
    };
    keep("k", global_k, window_k, input.k);
    keep("v", global_v, window_v, input.v);
    result.state["global_valid"] = mask_to_state(
        carry_mask(global_mask, global_part, {}, B, past_globals, added, kKeepAll, device));
    result.state["valid"] = mask_to_state(carry_mask(
        window_mask, window_part, {}, B, lists.past_window, T - added, window_ - 1, device));
    return result;
  }

  LongformerParams params_;
  int64_t window_, globals_;
  GlobalProjection q_, k_, v_;
};

// x [n,E] by the map of that name, [n,H,K].
template <typename Number>
std::vector<Number> projected(const ReferenceSequence<Number>& s, const std::string& name) {
  const std::vector<Number>& weight = s.parameter(name + ".weight");
  std::vector<Number> y(s.x.size());
  for (int64_t i = 0; i < s.T * s.E; ++i) {
    Number sum = dot_product(&s.x[static_cast<size_t>(i / s.E * s.E)],
                             &weight[static_cast<size_t>(i % s.E * s.E)], s.E);
    if (s.options.bias) sum += s.parameter(name + ".bias")[static_cast<size_t>(i % s.E)];
    y[static_cast<size_t>(i)] = s.stored(sum);
  }
  return y;
}

template <typename Number>
std::vector<Number> definition(const LongformerParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const int64_t globals = params.globals(s.form), window = params.width(s.options);
  const auto attention = [&](const ReferenceSequence<Number>& of) {
    return softmax_attention_reference(
        of, scale,
        [&](int64_t i, int64_t j) {
          if (j < globals) return true;
          if (s.form == Form::causal) return i - j < window;
          return i < globals || (j >= i - window / 2 && j <= i + window / 2);
        },
        [](int64_t, int64_t, int64_t) { return Number{0}; });
  };
  std::vector<Number> y = attention(s);
  if (!params.separate() || globals == 0) return y;
  ReferenceSequence<Number> own = s;
  own.q = projected(s, "q_global");
  own.k = projected(s, "k_global");
  own.v = projected(s, "v_global");
  const std::vector<Number> of_globals = attention(own);
  const int64_t elements = std::min(globals, s.T) * s.H * s.V;
  std::copy(of_globals.begin(), of_globals.begin() + elements, y.begin());
  return y;
}

}  // namespace

void LongformerParams::describe(ConfigDescription<LongformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("window", &LongformerParams::window,
          "w: w/2 tokens on each side of the token (noncausal, even), or the token and w - 1 "
          "before it (causal); null: twice the width of a head")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("global_tokens", &LongformerParams::global_tokens,
          "first tokens that read all tokens, and that all read; null: one, causal none")
      .range(0, 1 << 20)
      .unit("tokens");
  d.choice("global_proj", &LongformerParams::global_proj, {"shared", "separate"},
           "global tokens read through the projections of all, or through their own "
           "(noncausal)");
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  describe_dropout(d);
}

MixerTraits LongformerParams::traits(MixerTraits traits) const {
  const int64_t globals_at_most = globals(Form::noncausal);
  if (separate() && globals_at_most > 0) {
    traits.causal = traits.decode_state = traits.constant_state = false;
  }
  if (globals_at_most == 0) traits.exempt.erase("packing");
  return traits;
}

int64_t LongformerParams::width(const MixerOptions& options) const {
  const int64_t width = window.value_or(2 * options.head_width());
  require_usage(options.form == Form::causal || width % 2 == 0, "longformer: a window of ", width,
                " tokens has no half for each side; make it even");
  return width;
}

Mechanism longformer_mechanism() {
  Mechanism facts;
  facts.name = "longformer";
  facts.title = "Longformer: a sliding window and global tokens";
  facts.equation =
      "y_i = sum_j softmax_j(scale q_i . k_j) v_j over |i - j| <= w/2 (causal: i-w < j <= i)\n"
      "and the first g tokens, which themselves read all tokens";
  facts.complexity = "time B H T (w + 2 g) (K + V), memory of decoding B H (w + g) (K + V)";
  facts.sources =
      "Beltagy et al. 2020, Longformer; a survey's runs (projections shared); causal: ours";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T (w + g)";
  facts.traits.exempt["packing"] =
      "a row has one set of global tokens: packed documents are refused";
  facts.presets = kPresets;
  facts.cost_cases = {"{window: 256}", "{window: 64, global_tokens: 9}"};
  facts.variants = {"{window: 6, global_tokens: 0, scale: 1}", "{window: 8, global_tokens: 3}",
                    "{window: 4, global_tokens: 2, global_proj: separate}"};
  const auto softmax = [](const ReferenceSequence<double>& s) {
    return softmax_attention_reference(
        s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
        [](int64_t, int64_t, int64_t) { return 0.0; });
  };
  facts.limits = {{"a window that reaches everything gives softmax attention",
                   "{window: 128, global_tokens: 0}",
                   {Form::noncausal, Form::causal},
                   {},
                   softmax},
                  {"so do global tokens only",
                   "{window: 2, global_tokens: 64}",
                   {Form::noncausal, Form::causal},
                   {},
                   softmax}};
  return define_mechanism<LongformerParams, LongformerMixer>(
      std::move(facts), [](const LongformerParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
