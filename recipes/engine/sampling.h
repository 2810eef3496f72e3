// Choosing the next token from logits: temperature, top-k, top-p (nucleus), by counter.
#pragma once

#include <cstdint>
#include <span>

#include "core/random.h"

namespace linnet {

struct SamplingOptions {
  double temperature = 1;  // 0: always the most likely token (ties: the lowest id)
  int64_t top_k = 0;       // keep the k most likely; 0: all
  double top_p = 1;        // then the smallest set whose probability reaches p
  // Throws UsageError naming the option that is out of range.
  void validate() const;
};

// One draw: a pure function of its arguments. `draw` numbers the draws of a key. Throws Error when
// a logit is NaN or all are -infinity.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     const RandomKey& key, uint64_t draw);

}  // namespace linnet
