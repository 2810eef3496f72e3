// Shares of two parts in one softmax, as functions that the CPU and the device share.
#pragma once

#include <cmath>
#include <cstdint>

namespace linnet::joint_softmax_rule {

// exp(own - log(exp(own) + exp(other))); 0 where the part has no key.
template <typename T>
constexpr T share(T own, T other) {
  if (std::isinf(own)) return T{0};
  if (std::isinf(other)) return T{1};
  return own >= other ? 1 / (1 + std::exp(other - own))
                      : std::exp(own - other) / (1 + std::exp(own - other));
}

// log(exp(a) + exp(b)).
template <typename T>
constexpr T sum_of(T a, T b) {
  const T larger = a >= b ? a : b, smaller = a >= b ? b : a;
  return std::isinf(smaller) ? larger : larger + std::log(1 + std::exp(smaller - larger));
}

// A part without a share may hold anything.
template <typename T>
constexpr T weighted(T share, T x) {
  return share == 0 ? T{0} : share * x;
}

// Gradient of the log-sum-exp of part a: share_a share_b dy . (y_a - y_b). That of part b is its
// opposite.
template <typename T>
constexpr T shift(const T* a, const T* b, const T* dy, int64_t V, T share_a, T share_b) {
  if (share_a == 0 || share_b == 0) return T{0};
  T total = 0;
  for (int64_t c = 0; c < V; ++c) total += dy[c] * (a[c] - b[c]);
  return share_a * share_b * total;
}

}  // namespace linnet::joint_softmax_rule
