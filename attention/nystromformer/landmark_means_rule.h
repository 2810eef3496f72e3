// One row of the split into landmarks: a pure function that the CPU and the device share.
#pragma once

#include "attention/common/landmark_runs.h"
#include "attention/nystromformer/landmark_means.h"

namespace linnet::landmark_means_rule {

template <typename T>
struct Row {
  int32_t* owner;
  T* shares;
  uint8_t* used;
};

// Splits one row of `tokens` tokens into C landmarks; valid may be null.
template <typename T>
constexpr void cut_row(const uint8_t* valid, int64_t tokens, int64_t C, LandmarkPadding padding,
                       const Row<T>& to) {
  int64_t count = 0;
  for (int64_t t = 0; t < tokens; ++t) count += valid == nullptr || valid[t] != 0 ? 1 : 0;
  const bool skips = padding == LandmarkPadding::valid;
  const int64_t cut = skips ? count : tokens;
  for (int64_t c = 0; c < C; ++c) {
    to.shares[c] = 0;
    to.used[c] = 0;
  }
  int64_t rank = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const bool there = valid == nullptr || valid[t] != 0;
    to.owner[t] = -1;
    if (!there && skips) continue;
    const Landmark mine = landmark_of(rank++, cut, C);
    if (padding == LandmarkPadding::row_of_zeros) {
      to.used[mine.number] = 1;
      to.shares[mine.number] = static_cast<T>(mine.tokens);
    }
    if (!there) continue;
    to.owner[t] = static_cast<int32_t>(mine.number);
    to.used[mine.number] = 1;
    if (padding != LandmarkPadding::row_of_zeros) to.shares[mine.number] += 1;
  }
  for (int64_t c = 0; c < C; ++c) {
    if (to.shares[c] > 0) to.shares[c] = 1 / to.shares[c];
  }
}

}  // namespace linnet::landmark_means_rule
