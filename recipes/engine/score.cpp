#include "recipes/engine/score.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace linnet {
namespace {

double share_of(const DeadRows& layer) {
  return layer.rows > 0 ? static_cast<double>(layer.dead) / static_cast<double>(layer.rows) : 0;
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

ScoreOptions score_options(const EvaluateConfig& config) {
  ScoreOptions options;
  options.split = split_from_name(config.split);
  options.contexts = config.contexts;
  options.stride = config.stride;
  options.carry_state = config.carry_state;
  options.batch = config.batch;
  options.max_tokens = config.max_tokens;
  return options;
}

}  // namespace linnet
