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

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    require_usage(!context.segments.defined(),
                  "probsparse ranks the queries of a row; do not pack documents into rows");
    const int64_t B = input.q.size(0), T = input.q.size(1), H = input.q.size(2);
    const ChosenQueries chosen = chosen_queries(active(input, context), T);
    BlockAttentionContext all;
    all.cross = true;
    all.key_mask = context.key_mask;
    all.place = context.place;
    all.options.scale = params_.scale.value_or(default_scale(options()));
    set_dropout(all, params_.dropout, options(), context, draw_key(context));
    const Variable rows =
        block_attention({take_queries(input.q, chosen), input.k, input.v, {}, {}, {}}, all);
    const Variable values = reshape(input.v, {B, T, H * input.v.size(3)});
    return {put_queries(rows, mean_pool(values, context.key_mask, false), chosen, context.key_mask),
            {}};
  }

  // The search for queries is not counted: its results are choices, not values.
  MixerCost mix_cost(const MixerShape& shape) const override {
    const int64_t exact = probsparse_count(shape.queries, factor_);
    MixerCost cost;
    cost.mixing = static_cast<double>(shape.batch * exact * shape.queries) * 2 *
                  static_cast<double>(options().width);
    return cost;
  }

 private:
  Tensor active(const MixInput& input, const MixerContext& context) const {
    const int64_t B = input.q.size(0), T = input.q.size(1), H = input.q.size(2);
    RandomKey key = draw_key(context).at("samples");
    if (!context.training) {
      // The same keys in every evaluation.
      key.step = 0;
      key.device_step = nullptr;
    }
    const int64_t count = probsparse_count(T, factor_);
    // Draws that are given or noted pass through the host; others are made on the device.
    Tensor draws;
    if (context.record != nullptr) {
      draws = drawn(context, "samples", {T, count}, [&] {
                return probsparse_draws(key, T, factor_);
              }).to(input.q.value().device());
    }
    const DType dtype = sum_dtype(input.q.dtype());
    return chosen(context, "active", {B, H, count}, input.q.value().device(), [&] {
      return active_queries(input.q.value().to(dtype), input.k.value().to(dtype), context.key_mask,
                            draws, key, factor_);
    });
  }

  ProbsparseParams params_;
  int64_t factor_;
};

// The valid tokens whose queries of one head stand out most, by a plain search.
template <typename Number>
std::vector<int64_t> outstanding(const ReferenceSequence<Number>& s, int64_t h,
                                 const std::vector<int64_t>& valid, size_t count) {
  require(s.draws.contains("samples"), "probsparse: the definition needs the mixer's draws");
  const Tensor& draws = s.draws.at("samples");
  const auto n = static_cast<double>(valid.size());
  std::vector<std::pair<float, int64_t>> ranking;
  for (const int64_t i : valid) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t sample = 0; sample < count; ++sample) {
      const double draw = draws.data<double>()[i * draws.size(1) + static_cast<int64_t>(sample)];
      const int64_t j = valid[static_cast<size_t>(std::floor(draw * n))];
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
  for (size_t r = 0; r < count; ++r) found.push_back(ranking[r].second);
  return found;
}

template <typename Number>
std::vector<Number> definition(const ProbsparseParams& params, const ReferenceSequence<Number>& s) {
  std::vector<int64_t> valid;
  for (int64_t j = 0; j < s.S; ++j) {
    if (s.key_valid[static_cast<size_t>(j)] != 0) valid.push_back(j);
  }
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  if (valid.empty()) return y;
  const double n = static_cast<double>(valid.size());
  const double wanted =
      static_cast<double>(params.factor_at(s.options.max_length)) * std::ceil(std::log(n));
  const auto count = static_cast<size_t>(std::clamp(wanted, 1.0, n));
  // Rows of the queries in `queries`, by a softmax over all valid keys of these logits.
  const auto answer = [&](int64_t i, int64_t h, bool exact) {
    std::vector<Number> logits;
    const auto scale =
        static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
    for (const int64_t j : valid) {
      logits.push_back(exact ? scale * dot_product(s.query(i, h), s.key(j, h), s.K) : Number{0});
    }
    const std::vector<Number> weights = softmax_of(std::move(logits));
    Number* out = &y[static_cast<size_t>((i * s.H + h) * s.V)];
    std::fill_n(out, s.V, Number{0});
    for (size_t r = 0; r < valid.size(); ++r) {
      for (int64_t c = 0; c < s.V; ++c) out[c] += weights[r] * s.value(valid[r], h)[c];
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
      exact = outstanding(s, h, valid, count);
    }
    for (const int64_t i : valid) answer(i, h, false);
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
  facts.traits.noncausal = true;
  facts.traits.growth = "T ln T";
  facts.traits.exempt["packing"] = "the queries of a row are ranked: packed documents are refused";
  facts.presets = kPresets;
  facts.variants = {"{factor: 2, scale: 1}", "{budget: 12}"};
  facts.cost_cases = {"{factor: 16}"};
  facts.limits = {
      {"where every query is exact, softmax attention",
       "{factor: 64}",
       {Form::noncausal},
       {},
       [](const ReferenceSequence<double>& s) {
         return softmax_attention_reference(
             s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
             [](int64_t, int64_t, int64_t) { return 0.0; });
       }},
      {"equal keys leave the mean of the values, exact or not",
       "{}",
       {Form::noncausal},
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
