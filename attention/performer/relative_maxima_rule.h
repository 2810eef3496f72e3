// One element of each of the operations on projections and their maxima: pure functions that the
// CPU and the device share.
#pragma once

#include <cstdint>

namespace linnet::relative_maxima_rule {

// Projections [B,T,H,m] and, for every row of them, the maximum of its group [B,T,H].
template <typename T>
struct Projections {
  int64_t heads, features;
  const uint8_t* mask;  // [B,T], or null
  const T *p, *maxima;

  constexpr bool valid(int64_t row) const { return mask == nullptr || mask[row / heads] != 0; }
  constexpr T value(int64_t i) const { return p[i] - maxima[i / features]; }
  // How often the maximum is attained in a row.
  constexpr T count(int64_t row) const {
    T n = 0;
    for (int64_t c = 0; valid(row) && c < features; ++c)
      n += is_largest(row * features + c) ? 1 : 0;
    return n;
  }
  // The sum of a row of gradients.
  constexpr T sum(const T* gradients, int64_t row) const {
    T total = 0;
    for (int64_t c = 0; valid(row) && c < features; ++c) total += gradients[row * features + c];
    return total;
  }
  // Element i of the projections' gradient; sums and counts are those of its group.
  constexpr T gradient(const T* gradients, const T* sums, const T* counts, int64_t i) const {
    const int64_t row = i / features;
    if (!valid(row)) return 0;
    return is_largest(i) ? gradients[i] - sums[row] / counts[row] : gradients[i];
  }

 private:
  constexpr bool is_largest(int64_t i) const { return p[i] == maxima[i / features]; }
};

}  // namespace linnet::relative_maxima_rule
