// The element of x that an element of the shifted x equals, and the inverse: pure functions that
// the CPU and the device share.
#pragma once

#include <cstdint>

namespace linnet {

// Elements are flat indices of x [B,T,E] and of the last token before it, [B,1,E].
struct TokenShift {
  int64_t T = 0, E = 0;
  bool has_past = false;
  const uint8_t* mask = nullptr;       // [B,T]
  const int32_t* segments = nullptr;   // [B,T]
  const uint8_t* past_mask = nullptr;  // [B,1]

  static constexpr int64_t kNothing = -1, kPast = -2;

  // Where element i of the result comes from.
  constexpr int64_t source(int64_t i) const {
    if (i % E >= E / 2) return i;
    const int64_t token = i / E;
    if (token % T > 0) return follows(token) ? i - E : kNothing;
    const int64_t row = token / T;
    return has_past && (past_mask == nullptr || past_mask[row] != 0) ? kPast : kNothing;
  }
  // The element of the past that element i of the first token comes from.
  constexpr int64_t past(int64_t i) const { return i / (T * E) * E + i % E; }
  // The element of the result that reads element i of x.
  constexpr int64_t reader(int64_t i) const {
    if (i % E >= E / 2) return i;
    const int64_t token = i / E;
    return token % T + 1 < T && follows(token + 1) ? i + E : kNothing;
  }
  // The element of the result that reads element i of the past.
  constexpr int64_t past_reader(int64_t i) const {
    const int64_t row = i / E, first = row * T * E + i % E;
    return i % E < E / 2 && T > 0 && source(first) == kPast ? first : kNothing;
  }

 private:
  // Whether a token (not a row's first) may read the one before.
  constexpr bool follows(int64_t token) const {
    if (segments != nullptr && segments[token] != segments[token - 1]) return false;
    return mask == nullptr || mask[token - 1] != 0;
  }
};

}  // namespace linnet
