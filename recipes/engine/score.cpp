#include "recipes/engine/score.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace linnet {
namespace {

double share_of(const DeadRows& layer) {
  return layer.rows > 0 ? static_cast<double>(layer.dead) / static_cast<double>(layer.rows) : 0;
}

using Pairs = std::vector<std::pair<double, double>>;

double correlation(const Pairs& values) {
  const auto count = static_cast<double>(values.size());
  double mean_a = 0, mean_b = 0;
  for (const auto& [a, b] : values) {
    mean_a += a / count;
    mean_b += b / count;
  }
  double aa = 0, bb = 0, ab = 0;
  for (const auto& [a, b] : values) {
    aa += (a - mean_a) * (a - mean_a);
    bb += (b - mean_b) * (b - mean_b);
    ab += (a - mean_a) * (b - mean_b);
  }
  return ab / (std::sqrt(aa) * std::sqrt(bb));
}

// Replaces one member of each pair by its rank; equal ones share the mean of theirs.
void rank(Pairs& values, double std::pair<double, double>::*member) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return values[a].*member < values[b].*member; });
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const double value = values[order[begin]].*member;
    while (end < order.size() && values[order[end]].*member == value) ++end;
    const double shared = static_cast<double>(begin + end - 1) / 2;
    for (size_t i = begin; i < end; ++i) values[order[i]].*member = shared;
  }
}

}  // namespace

double Counts::perplexity() const {
  return std::exp(nll());
}

double Counts::word_perplexity() const {
  return std::exp(nll_sum / static_cast<double>(words));
}

double Counts::bits_per_byte() const {
  return nll_sum / std::log(2.0) / static_cast<double>(bytes);
}

double Counts::f1() const {
  require(two_classes(), "F1 is of two classes");
  const auto hits = static_cast<double>(confusion[3]);
  const auto errors = static_cast<double>(confusion[1] + confusion[2]);
  return hits + errors > 0 ? 2 * hits / (2 * hits + errors) : 0;
}

double Counts::matthews() const {
  require(two_classes(), "the Matthews correlation is of two classes");
  const auto tn = static_cast<double>(confusion[0]), fp = static_cast<double>(confusion[1]);
  const auto fn = static_cast<double>(confusion[2]), tp = static_cast<double>(confusion[3]);
  const double scale = std::sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn));
  return scale > 0 ? (tp * tn - fp * fn) / scale : 0;
}

double Counts::pearson() const {
  return correlation(values);
}

double Counts::spearman() const {
  Pairs ranks = values;
  rank(ranks, &std::pair<double, double>::first);
  rank(ranks, &std::pair<double, double>::second);
  return correlation(ranks);
}

double Score::dead_share() const {
  DeadRows all;
  for (const auto& [layer, rows] : dead_rows) {
    all.rows += rows.rows;
    all.dead += rows.dead;
  }
  return share_of(all);
}

std::string Score::dead_text() const {
  if (dead_share() == 0) return "";
  const auto worst = std::max_element(
      dead_rows.begin(), dead_rows.end(),
      [](const auto& a, const auto& b) { return share_of(a.second) < share_of(b.second); });
  char text[96];
  std::snprintf(text, sizeof(text), "; %.3g %% of attention's rows are dead (layer %lld: %.3g %%)",
                100 * dead_share(), static_cast<long long>(worst->first),
                100 * share_of(worst->second));
  return text;
}

EvaluationMetrics Score::metrics(int64_t step) const {
  EvaluationMetrics line;
  line.step = step;
  line.split = split;
  line.scored = scored;
  line.nll = nll();
  form->add_metrics(*this, line);
  if (const double dead = dead_share(); dead > 0) line.more.set("dead_rows", dead);
  line.more.set("scoring_seconds", seconds);
  return line;
}

std::vector<ScoringProtocol> protocols_at(const std::vector<int64_t>& contexts,
                                          std::optional<int64_t> stride, bool carry_state) {
  if (contexts.empty()) return {{std::nullopt, stride, carry_state}};
  std::vector<ScoringProtocol> protocols;
  for (const int64_t context : contexts) protocols.push_back({context, stride, carry_state});
  return protocols;
}

ScoreOptions score_options(const EvaluateConfig& config) {
  ScoreOptions options;
  options.split = split_from_name(config.split);
  options.listed = !config.protocols.empty();
  options.protocols = options.listed
                          ? config.protocols
                          : protocols_at(config.contexts, config.stride, config.carry_state);
  options.batch = config.batch;
  options.max_tokens = config.max_tokens;
  return options;
}

std::vector<ScoreOptions> scored_by_run(const EvaluateConfig& config) {
  std::vector<ScoreOptions> scored;
  if (config.scores_anything()) scored.push_back(score_options(config));
  if (config.best_on) {
    scored.push_back(score_options(config));
    scored.back().split = split_from_name(*config.best_on);
  }
  return scored;
}

void require_whole(const ScoreOptions& options, std::string_view what) {
  require_usage(
      options.protocols == ScoreOptions().protocols,
      Cause{ErrorCode::conflict, options.listed ? "evaluate.protocols" : "evaluate.contexts"},
      "contexts, stride and carried state are for texts of language models; these are ", what,
      ", which are scored whole");
  require_usage(options.batch >= 1, Cause{ErrorCode::out_of_range, "evaluate.batch"}, what,
                " scored together must be at least 1, got ", options.batch);
  require_usage(!options.max_tokens || *options.max_tokens >= 1,
                Cause{ErrorCode::out_of_range, "evaluate.max_tokens"},
                "evaluate.max_tokens must be at least 1, got ", options.max_tokens.value_or(0));
}

}  // namespace linnet
