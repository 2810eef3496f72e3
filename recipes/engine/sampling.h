// Choosing the next token from logits: repetition penalty, temperature, top-k, top-p (nucleus),
// min-p, by counter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/random.h"

namespace linnet {

struct SamplingOptions {
  double temperature = 1;  // 0: always the most likely token (ties: the lowest id)
  int64_t top_k = 0;       // keep the k most likely; 0: all
  double top_p = 1;        // then the smallest set whose probability reaches p
  double min_p = 0;        // then those with at least so much of the most likely one's probability
  double repetition_penalty = 1;  // see penalize(); 1: none
  // Whether all else is left out.
  bool only_temperature() const {
    return top_k == 0 && top_p == 1 && min_p == 0 && repetition_penalty == 1;
  }
  // Throws UsageError naming the option that is out of range.
  void validate() const;
};

// Divides the positive logits of tokens that the text has already by the penalty and multiplies the
// others (Keskar et al. 2019, CTRL, section 4.1). `seen` has an entry for each id.
void penalize(std::span<float> logits, const std::vector<bool>& seen, double penalty);

// Natural logarithm of the probability that softmax(logits) gives to `token`.
double log_probability(std::span<const float> logits, int32_t token);

// The tokens that may be drawn, likeliest first, and their probabilities times `mass`.
struct Candidates {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  double mass = 0;
};
// After the penalty, at a temperature above 0. Throws as sample_token().
Candidates candidates_of(std::span<const float> logits, const SamplingOptions& options);

// One draw, after the penalty: a pure function of its arguments. `draw` numbers the draws of a key.
// Throws Error when a logit is NaN or all are -infinity.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     const RandomKey& key, uint64_t draw);

}  // namespace linnet
