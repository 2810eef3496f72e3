#include "data/hold_out.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/error.h"
#include "data/permutation.h"

namespace linnet {

void HoldOutOptions::describe(ConfigDescription<HoldOutOptions>& d) {
  d.field("validation_fraction", &HoldOutOptions::validation_fraction,
          "share of the training examples that is held out for validation")
      .above(0)
      .below(1);
  d.field("seed", &HoldOutOptions::seed, "chooses the examples that are held out").at_least(0);
}

std::pair<ClassificationSplit, ClassificationSplit> hold_out(const ClassificationSplit& whole,
                                                             double fraction, int64_t seed,
                                                             bool in_order) {
  const int64_t count = whole.size();
  require(count >= 2, Cause{ErrorCode::out_of_range}, "a validation split cannot be held out of ",
          count, " training example; give it in files");
  const int64_t held =
      std::clamp<int64_t>(std::llround(fraction * static_cast<double>(count)), 1, count - 1);
  std::vector<bool> chosen(static_cast<size_t>(count), false);
  for (int64_t i = count - held; i < count; ++i) {
    const int64_t at = in_order ? i : permuted_index(static_cast<uint64_t>(seed), 0, i, count);
    chosen[static_cast<size_t>(at)] = true;
  }
  std::pair<ClassificationSplit, ClassificationSplit> result;
  for (ClassificationSplit* split : {&result.first, &result.second}) {
    split->sequences_per_example = whole.sequences_per_example;
    split->zero_is_pad = whole.zero_is_pad;
    split->cls_drops_last = whole.cls_drops_last;
    split->pad_id = whole.pad_id;
  }
  for (int64_t i = 0; i < count; ++i) {
    ClassificationSplit& split = chosen[static_cast<size_t>(i)] ? result.second : result.first;
    for (int64_t s = 0; s < whole.sequences_per_example; ++s) {
      const std::span<const int32_t> ids = whole.example(i, s);
      split.add_sequence(ids);
      if (whole.types.empty()) continue;
      const auto types = whole.types.begin() + (ids.data() - whole.tokens.data());
      split.types.insert(split.types.end(), types, types + std::ssize(ids));
    }
    const auto at = static_cast<size_t>(i);
    split.labels.push_back(whole.labels[at]);
    if (!whole.values.empty()) split.values.push_back(whole.values[at]);
    if (!whole.rows.empty()) split.rows.push_back(whole.rows[at]);
  }
  return result;
}

}  // namespace linnet
