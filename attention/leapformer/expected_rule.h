// Weights of expected soft attention, one query of one head: functions that the CPU and the device
// share.
#pragma once

#include <cmath>
#include <cstdint>

namespace linnet::expected_rule {

// The term that fairseq adds to every exponential, and once more to their sum.
inline constexpr double kTerm = 1e-6;

// Energies a [B H T, S] and the keys of which they are. Row r is head r / T % H of batch row r / T
// / H, and its query i = r % T sees the first (wait + first + i) read keys; wait 0: all.
template <typename T>
struct Weights {
  const T* energies;
  const uint8_t *query_valid, *key_valid;  // [B,T], [B,S]; null: all
  int64_t heads, queries, keys, wait, read, first;

  constexpr int64_t batch_row(int64_t r) const { return r / queries / heads; }
  constexpr bool writes(int64_t r) const {
    return query_valid == nullptr || query_valid[batch_row(r) * queries + r % queries] != 0;
  }
  constexpr bool valid(int64_t r, int64_t j) const {
    return key_valid == nullptr || key_valid[batch_row(r) * keys + j] != 0;
  }
  constexpr int64_t seen(int64_t r) const {
    const int64_t arrived = (wait + first + r % queries) * read;
    return wait == 0 || arrived > keys ? keys : arrived;
  }
  // The first valid key with the largest energy, seen or not; -1: none.
  constexpr int64_t largest(int64_t r) const {
    int64_t at = -1;
    for (int64_t j = 0; j < keys; ++j) {
      if (valid(r, j) && (at < 0 || energies[r * keys + j] > energies[r * keys + at])) at = j;
    }
    return at;
  }
  constexpr T exponential(int64_t r, int64_t j, int64_t top) const {
    return std::exp(energies[r * keys + j] - energies[r * keys + top]);
  }
  constexpr T sum(int64_t r, int64_t top) const {
    T total = static_cast<T>(kTerm);
    for (int64_t j = 0; j < seen(r); ++j) {
      if (valid(r, j)) total += exponential(r, j, top) + static_cast<T>(kTerm);
    }
    return total;
  }
  // weights[r,j] = (exp(a_j - max a) + term) / (term + sum over seen keys of the same); 0 for keys
  // that are not seen.
  constexpr void forward(int64_t r, T* weights) const {
    T* to = weights + r * keys;
    for (int64_t j = 0; j < keys; ++j) to[j] = 0;
    const int64_t top = writes(r) ? largest(r) : -1;
    if (top < 0) return;
    const T total = sum(r, top);
    for (int64_t j = 0; j < seen(r); ++j) {
      if (valid(r, j)) to[j] = (exponential(r, j, top) + static_cast<T>(kTerm)) / total;
    }
  }
  // The gradient of the energies, through the largest too.
  constexpr void backward(int64_t r, const T* weights, const T* dweights, T* denergies) const {
    const T *w = weights + r * keys, *d = dweights + r * keys;
    T* to = denergies + r * keys;
    for (int64_t j = 0; j < keys; ++j) to[j] = 0;
    const int64_t top = writes(r) ? largest(r) : -1;
    if (top < 0) return;
    const T total = sum(r, top);
    T mean = 0, whole = 0;
    for (int64_t j = 0; j < seen(r); ++j) {
      if (valid(r, j)) mean += w[j] * d[j];
    }
    for (int64_t j = 0; j < seen(r); ++j) {
      if (!valid(r, j)) continue;
      to[j] = exponential(r, j, top) * (d[j] - mean) / total;
      whole += to[j];
    }
    to[top] -= whole;
  }
};

}  // namespace linnet::expected_rule
