// One row of the split into landmarks, and one element of their means: pure functions that the CPU
// and the device share.
#pragma once

#include "attention/common/landmark_runs.h"
#include "attention/nystromformer/landmark_means.h"

namespace linnet::landmark_means_rule {

template <typename T>
struct Row {
  int32_t *owner, *begins;
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
  for (int64_t c = 0; c <= C; ++c) to.begins[c] = static_cast<int32_t>(tokens);
  for (int64_t c = 0; c < C; ++c) {
    to.shares[c] = 0;
    to.used[c] = 0;
  }
  int64_t rank = 0, last = -1;
  for (int64_t t = 0; t < tokens; ++t) {
    const bool there = valid == nullptr || valid[t] != 0;
    to.owner[t] = -1;
    if (!there && skips) continue;
    const Landmark mine = landmark_of(rank++, cut, C);
    if (mine.number != last) to.begins[mine.number] = static_cast<int32_t>(t);
    last = mine.number;
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

// Sizes of a sequence [B,T,H,K] and its landmarks [B,C,H,K].
template <typename Number>
struct Means {
  int64_t T, H, K, C;
  const int32_t *owner, *begins;
  const Number* shares;

  // Element i of the means.
  constexpr Number mean(const Number* x, int64_t i) const {
    const int64_t width = H * K, c = i / width % C, b = i / width / C;
    Number sum = 0;
    for (int64_t t = begins[b * (C + 1) + c]; t < begins[b * (C + 1) + c + 1]; ++t) {
      if (owner[b * T + t] == c) sum += x[(b * T + t) * width + i % width];
    }
    return shares[b * C + c] * sum;
  }
  // Element i of dx.
  constexpr Number gradient(const Number* dmeans, int64_t i) const {
    const int64_t width = H * K, b = i / width / T, c = owner[i / width];
    return c < 0 ? Number{0} : shares[b * C + c] * dmeans[(b * C + c) * width + i % width];
  }
};

}  // namespace linnet::landmark_means_rule
