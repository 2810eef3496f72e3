// ProbSparse attention: parameters, mixer, literal definition, registry entry.
#include "attention/probsparse/probsparse.h"

#include <cmath>

#include "attention/common/mixer_support.h"
#include "attention/common/query_rows.h"
#include "attention/define.h"
#include "attention/probsparse/active_queries.h"
#include "autograd/arithmetic.h"
#include "autograd/pooling.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lavo", "Informer's factor, with which LAVO's tables ran", {{"factor", "5"}}},
    {"skyformer",
     "Skyformer's and LeaPformer's Long Range Arena: about 128 queries of the longest sequence",
     {{"budget", "128"}}}};

class ProbsparseMixer : public AttentionMixer {
 public:
  ProbsparseMixer(const ProbsparseParams& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope),
        params_(params),
        factor_(params.factor_at(options.max_length)) {}

  MixResult mix(const MixInput& given, const MixerContext& context,
                const MixerState& state) const override {
    require_usage(!context.segments.defined(),
                  "probsparse ranks the queries of a row; do not pack documents into rows");
    MixInput input = given;
    ProbsparseMasks masks{context.key_mask, context.key_mask};
    MixerState next;
    if (options().form == Form::cross) {
      next = state.empty() ? encoded_source(input, context) : state;
      input.k = as_dtype(next.at("k"), input.q.dtype());
      input.v = as_dtype(next.at("v"), input.q.dtype());
      masks.keys = mask_from_state(next, "valid");
    }
    const int64_t B = input.v.size(0), S = input.v.size(1), H = input.v.size(2);
    const ChosenQueries chosen = chosen_queries(active(input, masks, context), input.q.size(1));
    BlockAttentionContext all;
    all.cross = true;
    all.key_mask = masks.keys;
    all.place = context.place;
    all.options.scale = params_.scale.value_or(default_scale(options()));
    set_dropout(all, params_.dropout, options(), context, draw_key(context));
    const Variable rows =
        block_attention({take_queries(input.q, chosen), input.k, input.v, {}, {}, {}}, all);
    const Variable values = reshape(input.v, {B, S, H * input.v.size(3)});
    return {put_queries(rows, mean_pool(values, masks.keys, false), chosen, masks.queries),
            std::move(next)};
  }

  // The search for queries is not counted: its results are choices, not values.
  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t exact = probsparse_count(shape.queries, factor_), E = options().width;
    const auto keys = static_cast<double>(shape.batch * shape.keys);
    MixerCost cost;
    cost.mixing = keys * static_cast<double>(exact * 2 * E);
    if (options().form == Form::cross) {
      cost.bytes = keys * static_cast<double>(2 * E) * size_of(shape.dtype);
    }
    return cost;
  }

 private:
  Tensor active(const MixInput& input, const ProbsparseMasks& masks,
                const MixerContext& context) const {
    const int64_t B = input.q.size(0), T = input.q.size(1), H = input.q.size(2);
    const int64_t S = input.k.size(1);
    RandomKey key = draw_key(context).at("samples");
    if (!context.training) {
      // The same keys in every evaluation.
      key.step = 0;
      key.device_step = nullptr;
    }
    // Draws that are given or noted pass through the host; others are made on the device.
    Tensor draws;
    if (context.record != nullptr) {
      draws = drawn(context, "samples", {T, probsparse_count(S, factor_)}, [&] {
                return probsparse_draws(key, T, S, factor_);
              }).to(input.q.value().device());
    }
    const DType dtype = sum_dtype(input.q.dtype());
    return chosen(context, "active", {B, H, probsparse_count(T, factor_)}, input.q.value().device(),
                  [&] {
                    return active_queries(input.q.value().to(dtype), input.k.value().to(dtype),
                                          masks, draws, key, factor_);
                  });
  }

  ProbsparseParams params_;
  int64_t factor_;
};

// The places of ones.
std::vector<int64_t> places_of(const std::vector<uint8_t>& valid) {
  std::vector<int64_t> places;
  for (size_t t = 0; t < valid.size(); ++t) {
    if (valid[t] != 0) places.push_back(static_cast<int64_t>(t));
  }
  return places;
}

// c ceil(ln n), at least 1 and at most n.
size_t count_of(int64_t factor, const std::vector<int64_t>& valid) {
  const auto n = static_cast<double>(valid.size());
  return static_cast<size_t>(
      std::clamp(static_cast<double>(factor) * std::ceil(std::log(n)), 1.0, n));
}

// The valid queries of one head that stand out most, by a plain search.
template <typename Number>
std::vector<int64_t> outstanding(const ReferenceSequence<Number>& s, int64_t h, int64_t factor) {
  require(s.draws.contains("samples"), "probsparse: the definition needs the mixer's draws");
  const Tensor& draws = s.draws.at("samples");
  const std::vector<int64_t> keys = places_of(s.key_valid), queries = places_of(s.query_valid);
  const auto n = static_cast<double>(keys.size());
  std::vector<std::pair<float, int64_t>> ranking;
  for (const int64_t i : queries) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t sample = 0; sample < count_of(factor, keys); ++sample) {
      const double draw = draws.data<double>()[i * draws.size(1) + static_cast<int64_t>(sample)];
      const int64_t j = keys[static_cast<size_t>(std::floor(draw * n))];
      double product = 0;
      for (int64_t c = 0; c < s.K; ++c) {
        product += static_cast<double>(s.query(i, h)[c]) * static_cast<double>(s.key(j, h)[c]);
      }
      largest = std::max(largest, product);
      sum += product;
    }
    ranking.emplace_back(static_cast<float>(largest - sum / n), i);
  }
  std::stable_sort(ranking.begin(), ranking.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<int64_t> found;
  for (size_t r = 0; r < count_of(factor, queries); ++r) found.push_back(ranking[r].second);
  return found;
}

template <typename Number>
std::vector<Number> definition(const ProbsparseParams& params, const ReferenceSequence<Number>& s) {
  const std::vector<int64_t> keys = places_of(s.key_valid), queries = places_of(s.query_valid);
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  if (keys.empty() || queries.empty()) return y;
  // The row of query i, by a softmax over all valid keys; its logits are 0 unless it is exact.
  const auto answer = [&](int64_t i, int64_t h, bool exact) {
    std::vector<Number> logits;
    const auto scale =
        static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
    for (const int64_t j : keys) {
      logits.push_back(exact ? scale * dot_product(s.query(i, h), s.key(j, h), s.K) : Number{0});
    }
    const std::vector<Number> weights = softmax_of(std::move(logits));
    Number* out = &y[static_cast<size_t>((i * s.H + h) * s.V)];
    std::fill_n(out, s.V, Number{0});
    for (size_t r = 0; r < keys.size(); ++r) {
      for (int64_t c = 0; c < s.V; ++c) out[c] += weights[r] * s.value(keys[r], h)[c];
    }
  };
  for (int64_t h = 0; h < s.H; ++h) {
    std::vector<int64_t> exact;
    if (const auto found = s.choices.find("active"); found != s.choices.end()) {
      const int64_t most = found->second.size(2);
      const int32_t* first = found->second.template data<int32_t>() + (s.row * s.H + h) * most;
      std::copy_if(first, first + most, std::back_inserter(exact),
                   [](int32_t t) { return t >= 0; });
    } else {
      exact = outstanding(s, h, params.factor_at(s.options.max_length));
    }
    for (const int64_t i : queries) answer(i, h, false);
    for (const int64_t i : exact) answer(i, h, true);
  }
  return y;
}

}  // namespace

int64_t ProbsparseParams::factor_at(int64_t max_length) const {
  if (!budget) return factor;
  require_usage(max_length >= 2, "probsparse: budget ", *budget,
                " is divided by ln of the longest ", "sequence of the model, found a length of ",
                max_length, "; set factor instead");
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(*budget) / std::log(static_cast<double>(max_length))));
}

void ProbsparseParams::describe(ConfigDescription<ProbsparseParams>& d) {
  describe_preset(d, kPresets);
  d.field("factor", &ProbsparseParams::factor,
          "c: c ceil(ln n) keys are sampled for a query and c ceil(ln n) queries are exact")
      .range(1, 1024);
  d.field("budget", &ProbsparseParams::budget,
          "null, or c = ceil(budget / ln N) for the longest sequence N of the model")
      .range(1, 1024);
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  describe_dropout(d);
}

Mechanism probsparse_mechanism() {
  Mechanism facts;
  facts.name = "probsparse";
  facts.title = "ProbSparse attention: few queries read all keys, others the mean";
  facts.equation =
      "M_i = max_s(q_i . k_s) - sum_s(q_i . k_s) / n over c ceil(ln n) sampled keys\n"
      "y_i = sum_j softmax_j(scale q_i . k_j) v_j for the c ceil(ln n) queries with the largest "
      "M_i\n"
      "y_i = mean_j v_j for all others";
  facts.complexity = "time 3 B H T c ln(T) K";
  facts.sources = "Zhou et al. 2021, Informer; Skyformer's code (budget)";
  facts.traits.noncausal = facts.traits.cross = true;
  facts.traits.growth = "T ln T";
  facts.traits.exempt["packing"] = "the queries of a row are ranked: packed documents are refused";
  facts.traits.exempt["chunks"] = "the queries of a call are ranked together";
  facts.presets = kPresets;
  facts.variants = {"{factor: 2, scale: 1}", "{budget: 12}"};
  facts.cost_cases = {"{factor: 16}"};
  facts.limits = {
      {"where every query is exact, softmax attention",
       "{factor: 64}",
       {Form::noncausal, Form::cross},
       {},
       [](const ReferenceSequence<double>& s) {
         return softmax_attention_reference(
             s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
             [](int64_t, int64_t, int64_t) { return 0.0; });
       }},
      {"equal keys leave the mean of the values, exact or not",
       "{}",
       {Form::noncausal, Form::cross},
       [](const std::string& name, std::vector<double>& values) {
         if (name == "k.weight") std::fill(values.begin(), values.end(), 0);
       },
       [](const ReferenceSequence<double>& s) {
         return linear_attention_definition(
             s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double total) { return total; });
       }}};
  return define_mechanism<ProbsparseParams, ProbsparseMixer>(
      std::move(facts), [](const ProbsparseParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
