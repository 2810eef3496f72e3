#include "recipes/engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"

namespace linnet {

void SamplingOptions::validate() const {
  require_usage(temperature >= 0 && std::isfinite(temperature),
                Cause{ErrorCode::out_of_range, "generate.temperature"},
                "temperature must be 0 or more, got ", temperature);
  require_usage(top_k >= 0, Cause{ErrorCode::out_of_range, "generate.top_k"},
                "top-k must be 0 (all tokens) or more, got ", top_k);
  require_usage(top_p > 0 && top_p <= 1, Cause{ErrorCode::out_of_range, "generate.top_p"},
                "top-p must be above 0 and at most 1, got ", top_p);
  require_usage(min_p >= 0 && min_p <= 1, Cause{ErrorCode::out_of_range, "generate.min_p"},
                "min-p must be 0 (all tokens) to 1, got ", min_p);
  require_usage(repetition_penalty > 0 && std::isfinite(repetition_penalty),
                Cause{ErrorCode::out_of_range, "generate.repetition_penalty"},
                "the repetition penalty must be above 0 (1: none), got ", repetition_penalty);
}

void penalize(std::span<float> logits, const std::vector<bool>& seen, double penalty) {
  if (penalty == 1) return;
  require(seen.size() == logits.size(), "penalize: ", seen.size(), " entries for ", logits.size(),
          " logits");
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!seen[i]) continue;
    logits[i] = static_cast<float>(logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty);
  }
}

double log_probability(std::span<const float> logits, int32_t token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - top);
  return logits[static_cast<size_t>(token)] - top - std::log(total);
}

namespace {

// Ids by falling logit; the lower id of equal ones first.
class Likelier {
 public:
  explicit Likelier(std::span<const float> logits) : logits_(logits) {}
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }

 private:
  std::span<const float> logits_;
};

void require_numbers(std::span<const float> logits) {
  require(!logits.empty(), "sample_token: no logits");
  int64_t missing = 0;  // counted: a loop that may end early is not made of vectors
  for (const float logit : logits) missing += logit != logit ? 1 : 0;
  require(missing == 0, "sample_token: a logit is NaN");
}

std::vector<int32_t> all_ids(std::span<const float> logits) {
  require_numbers(logits);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace

Candidates candidates_of(std::span<const float> logits, const SamplingOptions& options) {
  Candidates found;
  found.ids = all_ids(logits);
  std::sort(found.ids.begin(), found.ids.end(), Likelier(logits));
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(found.ids.size())) {
    found.ids.resize(static_cast<size_t>(options.top_k));
  }
  const double top = logits[static_cast<size_t>(found.ids[0])];
  require(std::isfinite(top), "sample_token: the largest logit is ", top);
  std::vector<double>& weights = found.weights;
  double total = 0;
  for (const int32_t id : found.ids) {
    weights.push_back(std::exp((logits[static_cast<size_t>(id)] - top) / options.temperature));
    total += weights.back();
  }
  size_t kept = 0;
  while (kept < weights.size() && (kept == 0 || found.mass < options.top_p * total))
    found.mass += weights[kept++];
  // The most likely token's weight is 1.
  while (kept > 1 && weights[kept - 1] < options.min_p) found.mass -= weights[--kept];
  found.ids.resize(kept);
  weights.resize(kept);
  return found;
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     const RandomKey& key, uint64_t draw) {
  if (options.temperature == 0) {
    require_numbers(logits);
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const Candidates candidates = candidates_of(logits, options);
  double left = key.uniform(draw) * candidates.mass;
  for (size_t i = 0; i + 1 < candidates.ids.size(); ++i) {
    left -= candidates.weights[i];
    if (left < 0) return candidates.ids[i];
  }
  return candidates.ids.back();
}

}  // namespace linnet
