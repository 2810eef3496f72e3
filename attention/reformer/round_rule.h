// Rows of arrays of tokens and of places, and what a round's soft-max is worth beside the others:
// the same on the host and in kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace linnet {

struct RoundRule {
  int64_t T = 0, H = 0, rounds = 1, N = 0;
  const int32_t* order = nullptr;  // Chunks
  const int32_t* placed = nullptr;

  // The row of [B,T,H,.] whose token stands in that row of [B,N,H,.]; -1: none.
  constexpr int64_t token(int64_t place) const {
    const int64_t h = place % H, n = place / H % N, b = place / H / N;
    const int64_t t = order[(b * H + h) * N + n] - 1;
    return t < 0 ? -1 : (b * T + t) * H + h;
  }
  // The row of [B,N,H,.] in which the token of that row of [B,T,H,.] stands; -1: it is masked.
  constexpr int64_t place(int64_t token, int64_t round) const {
    const int64_t h = token % H, t = token / H % T, b = token / H / T;
    const int64_t n = placed[((b * H + h) * rounds + round) * T + t];
    return n < 0 ? -1 : (b * N + n) * H + h;
  }

  // Whether a token has no key in any round.
  template <typename Number>
  constexpr bool is_alone(int64_t token, const Number* sums) const {
    if (place(token, 0) < 0) return false;
    for (int64_t r = 0; r < rounds; ++r) {
      if (sums[place(token, r)] != -std::numeric_limits<Number>::infinity()) return false;
    }
    return true;
  }
  // shares [B,N,H] of a token's rounds in one soft-max, of sums, the log-sum-exp of each.
  template <typename Number>
  constexpr void share(int64_t token, const Number* sums, Number* shares) const {
    if (place(token, 0) < 0 || is_alone(token, sums)) return;
    Number largest = -std::numeric_limits<Number>::infinity(), total = 0;
    for (int64_t r = 0; r < rounds; ++r) {
      const Number sum = sums[place(token, r)];
      largest = sum > largest ? sum : largest;
    }
    for (int64_t r = 0; r < rounds; ++r) total += std::exp(sums[place(token, r)] - largest);
    for (int64_t r = 0; r < rounds; ++r) {
      const int64_t at = place(token, r);
      shares[at] = std::exp(sums[at] - largest) / total;
    }
  }
  // The gradients of a token's sums, where dsums holds dy . y of every round.
  template <typename Number>
  constexpr void centre(int64_t token, const Number* shares, Number* dsums) const {
    if (place(token, 0) < 0) return;
    Number mean = 0;
    for (int64_t r = 0; r < rounds; ++r) {
      mean += shares[place(token, r)] * dsums[place(token, r)];
    }
    for (int64_t r = 0; r < rounds; ++r) {
      const int64_t at = place(token, r);
      dsums[at] = shares[at] * (dsums[at] - mean);
    }
  }
};

}  // namespace linnet
