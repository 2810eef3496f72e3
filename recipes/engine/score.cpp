// A score in words, for people, and as metrics.jsonl has it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "recipes/engine/task.h"

namespace linnet {
namespace {

// Three decimals, or powers of ten for the word perplexities of untrained models.
std::string readable(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), value < 1e6 ? "%.3f" : "%.3e", value);
  return text;
}

double share_of(const DeadRows& layer) {
  return layer.rows > 0 ? static_cast<double>(layer.dead) / static_cast<double>(layer.rows) : 0;
}

// "; 3.1 % of attention's rows are dead (layer 2: 9.4 %)", or nothing.
std::string dead_text(const Score& score) {
  if (score.dead_share() == 0) return "";
  const auto worst = std::max_element(
      score.dead_rows.begin(), score.dead_rows.end(),
      [](const auto& a, const auto& b) { return share_of(a.second) < share_of(b.second); });
  char text[96];
  std::snprintf(text, sizeof(text), "; %.3g %% of attention's rows are dead (layer %lld: %.3g %%)",
                100 * score.dead_share(), static_cast<long long>(worst->first),
                100 * share_of(worst->second));
  return text;
}

}  // namespace

double Score::perplexity() const {
  return std::exp(nll());
}

double Score::word_perplexity() const {
  return std::exp(nll_sum / static_cast<double>(words));
}

double Score::bits_per_byte() const {
  return nll_sum / std::log(2.0) / static_cast<double>(bytes);
}

double Score::dead_share() const {
  DeadRows all;
  for (const auto& [layer, rows] : dead_rows) {
    all.rows += rows.rows;
    all.dead += rows.dead;
  }
  return share_of(all);
}

EvaluationMetrics Score::metrics(int64_t step) const {
  EvaluationMetrics line;
  line.step = step;
  line.split = split;
  line.scored = scored;
  line.nll = nll();
  if (classification()) {
    line.accuracy = accuracy();
    line.more.set("scored_examples", tokens);
  } else {
    line.perplexity = perplexity();
    if (bytes > 0) line.bits_per_byte = bits_per_byte();
    line.more.set("mode", mode).set("scored_tokens", tokens);
    if (words > 0) line.more.set("scored_words", words).set("word_perplexity", word_perplexity());
    if (bytes > 0) line.more.set("scored_bytes", bytes);
    if (shorter_than_asked()) line.more.set("longest_window", longest);
    if (state_bytes > 0) line.more.set("state_bytes", static_cast<int64_t>(state_bytes));
  }
  if (const double dead = dead_share(); dead > 0) line.more.set("dead_rows", dead);
  line.more.set("scoring_seconds", seconds);
  return line;
}

std::string Score::progress_text() const {
  if (classification()) {
    char accuracy_text[32];
    std::snprintf(accuracy_text, sizeof(accuracy_text), "%.2f", 100 * accuracy());
    return concat("evaluating ", split, ": ", tokens, " examples, accuracy ", accuracy_text, " %");
  }
  return concat("evaluating ", split, scored.streaming ? " in " : " at ", scored.text(), ": ",
                tokens, " tokens, perplexity ", readable(perplexity()));
}

std::string Score::text() const {
  std::ostringstream out;
  out << std::fixed << split;
  if (classification()) {
    out << std::setprecision(2) << ": accuracy " << 100 * accuracy() << " % of " << tokens
        << " examples, loss " << std::setprecision(4) << nll() << dead_text(*this);
    return out.str();
  }
  out << (scored.streaming ? " in " : " at ") << scored.text(true) << " (" << mode;
  if (shorter_than_asked()) out << ", of at most " << longest << " tokens";
  out << "): perplexity " << readable(perplexity()) << " per token";
  if (words > 0) out << ", " << readable(word_perplexity()) << " per word";
  if (bytes > 0) out << ", " << std::setprecision(4) << bits_per_byte() << " bits per byte";
  out << "; " << tokens << " tokens in " << std::setprecision(1) << seconds << " s"
      << dead_text(*this);
  return out.str();
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
