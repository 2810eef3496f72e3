// One element of with_square: pure functions that the CPU and the device share.
#pragma once

#include <cstdint>

namespace linnet {

template <typename T>
struct SquareRule {
  int64_t H, K;
  bool is_key;
  const T* x;  // rows of K elements, H per token
  const uint8_t* mask;

  constexpr bool valid(int64_t row) const { return mask == nullptr || mask[row / H] != 0; }
  // Where a row has its square, and its 1.
  constexpr int64_t square() const { return is_key ? K + 1 : K; }
  // Element i of [rows,K+2].
  constexpr T value(int64_t i) const {
    const int64_t row = i / (K + 2), e = i % (K + 2);
    if (!valid(row)) return 0;
    const T* from = x + row * K;
    if (e < K) return from[e];
    if (e != square()) return 1;
    T sum = 0;
    for (int64_t c = 0; c < K; ++c) sum += from[c] * from[c];
    return -sum / 2;
  }
  // Element i of dx [rows,K].
  constexpr T gradient(const T* dy, int64_t i) const {
    const int64_t row = i / K, e = i % K;
    if (!valid(row)) return 0;
    const T* d = dy + row * (K + 2);
    return d[e] - x[i] * d[square()];
  }
};

}  // namespace linnet
