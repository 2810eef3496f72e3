// Synthesizer: parameters, mixer, literal definition, registry entry.
#include "attention/synthesizer/synthesizer.h"

#include <cmath>
#include <numbers>

#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "attention/synthesizer/one_hot.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"
#include "core/cuda/backend.h"
#include "layers/cache_places.h"
#include "layers/projection_bias.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"survey", "the survey's runs: factorized random logits of rank 8", {{"rank", "8"}}},
    {"lra",
     "Long Range Arena's code: dense, with the same second map for all heads",
     {{"kind", "dense"}, {"shared", "true"}}}};

// [.., p] and [.., q] side by side, [.., p + q].
Variable joined(const Variable& a, const Variable& b) {
  if (!a.defined()) return b;
  const int64_t p = a.size(-1), q = b.size(-1), rows = a.value().elements() / p;
  const Variable both = carry_tokens(reshape(a, {rows, p, 1}), reshape(b, {rows, q, 1}), -1);
  return reshape(both, a.shape().with(-1, p + q));
}

// [n,1,C] -> [n,heads,C].
Variable repeated(const Variable& x, int64_t heads) {
  Variable all = x;
  for (int64_t h = 1; h < heads; ++h) all = carry_tokens(all, x, -1);
  return all;
}

class SynthesizerMixer : public AttentionMixer {
 public:
  SynthesizerMixer(const SynthesizerParams& params, const MixerOptions& options,
                   const MixerScope& scope)
      : AttentionMixer(options, scope, {.q = false, .k = false}),
        params_(params),
        length_(params.length(options)) {
    require_usage(
        options.rotary_width == 0,
        "synthesizer has no queries and keys to rotate; use positions: sinusoidal, learned "
        "or none instead of rotary");
    const int64_t n = length_, H = options.heads, E = options.width, d = options.head_width();
    const auto table = [&](const std::string& name, int64_t columns) {
      const Shape shape{n, H, columns};
      return params.trainable ? scope.own.parameter(name, shape, init_normal(0.02))
                              : scope.own.buffer(name, shape, init_normal(0.02));
    };
    if (params.random()) random_ = table("random", n);
    if (params.factorized()) {
      random_query_ = table("random_query", params.rank);
      random_key_ = table("random_key", params.rank);
    }
    if (!params.dense()) return;
    const auto bias = [&](const std::string& name, const Shape& shape, int64_t inputs) {
      if (!options.bias) return Variable();
      return scope.own.parameter(name, shape, projection_bias_init(options.init, inputs));
    };
    const int64_t maps = params.shared ? 1 : H;
    hidden_weight_ = scope.own.parameter(
        "hidden.weight", {E, E}, projection_init(options.init, 1 / std::numbers::sqrt2, E, E));
    hidden_bias_ = bias("hidden.bias", {E}, E);
    dense_weight_ =
        scope.own.parameter("dense.weight", {n, maps, d}, projection_init(options.init, 1, d, n));
    dense_bias_ = bias("dense.bias", {n, maps}, d);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const int64_t B = input.v.size(0), T = input.v.size(1);
    const Tensor positions =
        context.positions.defined()
            ? context.positions
            : counted_positions(B, T, context.place.time_offset, input.v.value().device());
    const Tensor own = context.key_positions.defined() ? context.key_positions : positions;
    require_within(positions);
    require_within(own);
    BlockAttentionContext block = block_context(options(), context);
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    const DType dtype = input.v.dtype();
    BlockAttentionVariables in{queries(input, positions, dtype), {}, input.v, {}, {}, {}};
    const Variable table = key_table(dtype);
    in.k = keys(table, own, dtype);
    if (options().form == Form::noncausal) return {block_attention(in, block), {}};
    // Keys are parameters: the state has values only.
    MixerState placed;
    const MixerState& cache = with_requested_places(state, context.place.time_offset, T, placed,
                                                    {"position", "v", "valid"});
    const int64_t keep = tokens_to_keep(state);
    Variable past_positions;
    if (!state.empty()) {
      past_positions = cache.at("position");
      in.past_v = carried(cache, "v", dtype);
      in.past_k = keys(table, past_positions.value().to(DType::i32), dtype);
      block.past_mask = mask_from_state(cache, "valid");
    }
    MixerState after;
    after["position"] = carry_tokens(past_positions, Variable(own.to(DType::i64)), keep);
    after["v"] = carry_tokens(in.past_v, input.v, keep);
    after["valid"] = kv_cache_mask(context, cache, "valid", input.v,
                                   past_positions.defined() ? past_positions.size(1) : 0, keep);
    keep_request(state, after);
    return {block_attention(in, block), std::move(after)};
  }

  int64_t length_limit() const override { return length_; }

 protected:
  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto n = static_cast<double>(length_), H = static_cast<double>(options().heads);
    const auto d = static_cast<double>(options().head_width()), E = H * d;
    const auto rank = static_cast<double>(params_.rank);
    const auto tokens = static_cast<double>(shape.batch * shape.queries);
    const auto element = static_cast<double>(size_of(shape.dtype));
    BlockAttentionOptions all;
    all.causal = options().form == Form::causal;
    const double pairs = static_cast<double>(shape.batch) * visible_pairs(all, shape.queries) * H;
    const double bias = options().bias ? 1 : 0;
    MixerCost cost;
    double channels = 0, tables = 0, dense = 0;
    if (params_.dense()) {
      channels += d + bias;
      dense = E * (E + bias) + n * (params_.shared ? 1 : H) * (d + bias);
      cost.projections = tokens * E * E;
    }
    if (params_.random()) {
      channels += n;
      tables = n * H * n;
    } else if (params_.factorized()) {
      channels += rank;
      tables = 2 * n * H * rank;
    }
    cost.mixing = pairs * (channels + d);
    const DType held = params_.trainable ? shape.dtype : sum_dtype(shape.dtype);
    cost.bytes = element * dense + static_cast<double>(size_of(held)) * tables;
    if (all.causal) cost.bytes += tokens * (element * E + 2 * sizeof(int64_t));
    return cost;
  }

 private:
  // Rows of a table [n,H,C] at positions [B,S]: [B,S,H,C].
  Variable rows_at(const Variable& table, const Tensor& positions) const {
    const Variable rows =
        embedding(positions, reshape(table, {length_, table.size(1) * table.size(2)}));
    return reshape(rows, {positions.size(0), positions.size(1), table.size(1), table.size(2)});
  }

  // The queries, [B,T,H,C]: for the dense part relu(W1 x + b1) and 1, then those of the random
  // part.
  Variable queries(const MixInput& input, const Tensor& positions, DType dtype) const {
    const int64_t B = input.v.size(0), T = input.v.size(1), H = options().heads;
    Variable all;
    if (params_.dense()) {
      const Variable& x = input.x;
      require_usage(x.defined(),
                    "synthesizer: dense logits read the layer's input, which a run of the core "
                    "alone lacks; give inputs/x");
      all = reshape(linear(x, hidden_weight_, hidden_bias_, Activation::relu),
                    {B, T, H, options().head_width()});
      if (dense_bias_.defined()) {
        all = joined(all, Variable(Tensor::full({B, T, H, 1}, 1, dtype, x.value().device())));
      }
    }
    const Variable& table = params_.random() ? random_ : random_query_;
    if (table.defined()) all = joined(all, as_dtype(rows_at(table, positions), dtype));
    return all;
  }

  // The keys of all positions [n,H,C], without those of full random logits; undefined: there are no
  // others.
  Variable key_table(DType dtype) const {
    Variable all;
    if (params_.dense()) {
      all = dense_weight_;
      if (dense_bias_.defined()) {
        all = joined(all, reshape(dense_bias_, {length_, dense_weight_.size(1), 1}));
      }
      if (params_.shared) all = repeated(all, options().heads);
    }
    if (params_.factorized()) all = joined(all, as_dtype(random_key_, dtype));
    return all;
  }
  Variable keys(const Variable& table, const Tensor& positions, DType dtype) const {
    Variable all;
    if (table.defined()) all = rows_at(table, positions);
    // Selects the element of a query that belongs to the position.
    if (params_.random()) {
      all = joined(all, Variable(one_hot_positions(positions, options().heads, length_, dtype)));
    }
    return all;
  }

  // On a device rows beyond the tables give NaN.
  void require_within(const Tensor& positions) const {
    if constexpr (kCuda) {
      if (on_cuda(positions)) return;
    }
    for (int64_t i = 0; i < positions.elements(); ++i) {
      require_usage(positions.data<int32_t>()[i] < length_, "synthesizer: position ",
                    positions.data<int32_t>()[i], " lies beyond the length ", length_,
                    " that its logits were made for; raise max_length (or the training context)");
    }
  }

  SynthesizerParams params_;
  int64_t length_;
  Variable random_, random_query_, random_key_;
  Variable hidden_weight_, hidden_bias_, dense_weight_, dense_bias_;
};

// relu(W1 x_i + b1) of all heads, [T,E].
template <typename Number>
std::vector<Number> hidden_of(const ReferenceSequence<Number>& s) {
  const std::vector<Number>& weight = s.parameter("hidden.weight");
  std::vector<Number> hidden;
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t o = 0; o < s.E; ++o) {
      Number sum = dot_product(&s.x[static_cast<size_t>(i * s.E)],
                               &weight[static_cast<size_t>(o * s.E)], s.E);
      if (s.options.bias) sum += s.parameter("hidden.bias")[static_cast<size_t>(o)];
      hidden.push_back(s.stored(std::max(sum, Number{0})));
    }
  }
  return hidden;
}

template <typename Number>
std::vector<Number> definition(const SynthesizerParams& params,
                               const ReferenceSequence<Number>& s) {
  const int64_t n = params.length(s.options), H = s.H;
  std::vector<Number> hidden;
  if (params.dense()) hidden = hidden_of(s);
  const auto logit = [&](int64_t h, int64_t i, int64_t j) {
    const int64_t from = s.positions[static_cast<size_t>(i)];
    const int64_t to = s.positions[static_cast<size_t>(j)];
    const auto row = [&](const std::string& name, int64_t position, int64_t columns) {
      return &s.parameter(name)[static_cast<size_t>((position * H + h) * columns)];
    };
    Number total = 0;
    if (params.dense()) {
      const int64_t key = params.shared ? to : to * H + h;
      total += dot_product(&hidden[static_cast<size_t>((i * H + h) * s.K)],
                           &s.parameter("dense.weight")[static_cast<size_t>(key * s.K)], s.K);
      if (s.options.bias) total += s.parameter("dense.bias")[static_cast<size_t>(key)];
    }
    if (params.random()) total += row("random", from, n)[to];
    if (params.factorized()) {
      total += dot_product(row("random_query", from, params.rank),
                           row("random_key", to, params.rank), params.rank);
    }
    return total;
  };
  std::vector<Number> y(static_cast<size_t>(s.T * H * s.V), 0);
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < H; ++h) {
      std::vector<Number> logits(static_cast<size_t>(s.S),
                                 -std::numeric_limits<Number>::infinity());
      for (int64_t j = 0; j < s.S; ++j) {
        if (s.sees(i, j)) logits[static_cast<size_t>(j)] = logit(h, i, j);
      }
      const std::vector<Number> weights = softmax_of(std::move(logits));
      for (int64_t j = 0; j < s.S; ++j) {
        if (!s.sees(i, j)) continue;
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * H + h) * s.V + c)] +=
              weights[static_cast<size_t>(j)] * s.value(j, h)[c];
        }
      }
    }
  }
  return y;
}

// The mean of the values that each token sees.
std::vector<double> mean_of_seen(const ReferenceSequence<double>& s) {
  std::vector<double> y(static_cast<size_t>(s.T * s.E), 0);
  for (int64_t i = 0; i < s.T; ++i) {
    const int64_t seen = s.form == Form::causal ? i + 1 : s.S;
    for (int64_t j = 0; j < seen; ++j) {
      for (int64_t c = 0; c < s.E; ++c) {
        y[static_cast<size_t>(i * s.E + c)] += s.value(j, 0)[c] / static_cast<double>(seen);
      }
    }
  }
  return y;
}

std::vector<LimitingCase> limiting_cases() {
  const auto without = [](std::string_view table) {
    return [table](const std::string& name, std::vector<double>& values) {
      if (name.starts_with(table)) std::fill(values.begin(), values.end(), 0);
    };
  };
  const std::vector<Form> forms{Form::noncausal, Form::causal};
  return {
      {"R = 0 gives the mean of the values", "{kind: random}", forms, without("random"),
       mean_of_seen},
      {"R_1 = 0 gives the mean of the values", "{}", forms, without("random_query"), mean_of_seen},
      {"W_2 = b_2 = 0 gives the mean of the values", "{kind: dense}", forms, without("dense"),
       mean_of_seen}};
}

}  // namespace

int64_t SynthesizerParams::length(const MixerOptions& options) const {
  const int64_t length = max_length > 0 ? max_length : options.max_length;
  require_usage(length > 0, "synthesizer: its logits need a length; set max_length");
  return length;
}

void SynthesizerParams::describe(ConfigDescription<SynthesizerParams>& d) {
  describe_preset(d, kPresets);
  d.choice("kind", &SynthesizerParams::kind,
           {"factorized", "random", "dense", "dense_factorized", "dense_random"},
           "logits of two positions (in two factors, or as they are), of a token and a position, "
           "or the sum of both");
  d.field("rank", &SynthesizerParams::rank, "columns k of the two factors").range(1, 4096);
  d.field("shared", &SynthesizerParams::shared, "dense: the same second map for all heads");
  d.field("trainable", &SynthesizerParams::trainable,
          "random: train the drawn logits; else they stay as drawn and are no parameter");
  d.field("max_length", &SynthesizerParams::max_length,
          "length n of the logits; 0: the training context. Longer inputs are "
          "refused")
      .range(0, 1 << 24)
      .unit("tokens");
  describe_dropout(d);
}

Mechanism synthesizer_mechanism() {
  Mechanism facts;
  facts.name = "synthesizer";
  facts.title = "Synthesizer: softmax of logits that do not compare tokens";
  facts.equation =
      "y_i = sum_j softmax_j(b_ij) v_j    at positions i and j\n"
      "factorized: b_ij = R_1,i . R_2,j; random: b_ij = R_ij; dense: b_ij = W_2,j . relu(W_1 x_i + "
      "b_1) + b_2,j";
  facts.complexity =
      "time B H T^2 (C + K), C = k (factorized), n (random), K + 1 (dense), or their sum; memory "
      "of "
      "decoding B T H K";
  facts.sources = "Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T^2";
  facts.presets = kPresets;
  facts.variants = {"{kind: dense, shared: true}", "{kind: random, trainable: false}",
                    "{kind: dense_factorized, rank: 3}"};
  facts.limits = limiting_cases();
  return define_mechanism<SynthesizerParams, SynthesizerMixer>(
      std::move(facts), [](const SynthesizerParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
