// One element of each of the operations on sampled rows: pure functions that the CPU and the device
// share.
#pragma once

#include <cstdint>

namespace linnet::sampled_rows_rule {

// The valid token that a draw in [0, 1) chooses; -1 if there is none. valid may be null.
constexpr int32_t token_of(double draw, const uint8_t* valid, int64_t T) {
  int64_t count = 0;
  for (int64_t t = 0; t < T; ++t) count += valid == nullptr || valid[t] != 0 ? 1 : 0;
  int64_t left = static_cast<int64_t>(draw * static_cast<double>(count));
  if (left > count - 1) left = count - 1;
  for (int64_t t = 0; t < T; ++t) {
    if ((valid == nullptr || valid[t] != 0) && left-- == 0) return static_cast<int32_t>(t);
  }
  return -1;
}

// Sizes of sequences [B,T,H,K] of which r rows are sampled.
template <typename Number>
struct Rows {
  int64_t T, width, r;  // width: H K
  const int32_t* tokens;

  // Element i of [B,r,H,K].
  constexpr Number value(const Number* q, const Number* k, int64_t i) const {
    const int64_t row = i / width, b = row / r;
    const int32_t token = tokens[row];
    if (token < 0) return 0;
    // Named apart from its index: g++ 12 with UBSan misreads the sum of a chosen pointer.
    const Number* from = row % r < r / 2 ? q : k;
    return from[(b * T + token) * width + i % width];
  }
  // Adds the gradients of channel i of [B,H K] to those of its tokens: of queries, or of keys.
  constexpr void add_gradients(const Number* drows, bool keys, int64_t i, Number* to) const {
    const int64_t b = i / width, c = i % width;
    for (int64_t s = keys ? r / 2 : 0; s < (keys ? r : r / 2); ++s) {
      const int32_t token = tokens[b * r + s];
      if (token >= 0) to[(b * T + token) * width + c] += drows[(b * r + s) * width + c];
    }
  }
};

}  // namespace linnet::sampled_rows_rule
