// ProbSparse attention (Informer, Zhou et al. 2021): few queries read all keys, others the mean.
#pragma once

#include <optional>

#include "attention/mechanism.h"

namespace linnet {

struct ProbsparseParams {
  std::string preset = "none";
  int64_t factor = 5;             // c
  std::optional<int64_t> budget;  // instead of c: c = ceil(budget / ln(longest sequence))
  std::optional<double> scale;
  std::optional<double> dropout;

  static void describe(ConfigDescription<ProbsparseParams>& d);
  // c for a model of sequences up to that length. Throws UsageError where the budget needs a length
  // and there is none.
  int64_t factor_at(int64_t max_length) const;
};

Mechanism probsparse_mechanism();

}  // namespace linnet
