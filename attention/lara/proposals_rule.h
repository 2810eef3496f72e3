// One element of the densities of LARA's proposals: pure functions that the CPU and the device
// share.
#pragma once

#include <cstdint>
#include <limits>

namespace linnet::landmark_rule {

// Pairs of proposals w and means m, both [B,H,C,K]: logits [B,H,C,C] are scale (w_c . m_o -
// |m_o|^2 / 2), and -infinity for landmarks o without tokens (log_normalizer [B,H,C] is -infinity).
template <typename T>
struct Pairs {
  int64_t C, K;
  const T *w, *m;
  const double* log_normalizer;
  T scale;

  constexpr bool used(int64_t row) const {
    return log_normalizer[row] != -std::numeric_limits<double>::infinity();
  }
  // Row of [B,H,C] that the other landmark of element i of [B,H,C,C] has.
  constexpr int64_t other(int64_t i) const { return i / (C * C) * C + i % C; }
  constexpr T logit(int64_t i) const {
    if (!used(other(i))) return -std::numeric_limits<T>::infinity();
    const T *a = w + i / C * K, *b = m + other(i) * K;
    T sum = 0;
    for (int64_t e = 0; e < K; ++e) sum += b[e] * (a[e] - b[e] / 2);
    return scale * sum;
  }
  // Element i of dw and of dm [B,H,C,K] from dlogits, which are 0 where the other is not used.
  constexpr T dproposal(const T* dlogits, int64_t i) const {
    const int64_t row = i / K, first = row / C * C;
    T sum = 0;
    for (int64_t o = 0; o < C; ++o) sum += dlogits[row * C + o] * m[(first + o) * K + i % K];
    return scale * sum;
  }
  constexpr T dmean(const T* dlogits, int64_t i) const {
    const int64_t row = i / K, first = row / C * C, o = row % C;
    T sum = 0;
    for (int64_t c = 0; c < C; ++c) {
      sum += dlogits[(first + c) * C + o] * (w[(first + c) * K + i % K] - m[i]);
    }
    return scale * sum;
  }
};

}  // namespace linnet::landmark_rule
