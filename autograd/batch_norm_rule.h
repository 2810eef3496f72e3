// BatchNorm, the steps of one element each: functions that the CPU and the device share. Sums run
// over parts of the rows in a fixed order, in double. X reads elements of an array by at(i), in the
// type C that statistics have.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace linnet::batch_norm_rule {

inline constexpr int64_t kParts = 64;
// Added to variances, and the share of a batch in the running statistics.
inline constexpr double kEpsilon = 1e-5, kMomentum = 0.1;

// Rows [n,C] of which the mask's are valid (null: all). Element i of an array [kParts,C] is that of
// part i / C and channel i % C.
struct Rows {
  const uint8_t* mask;
  int64_t count, channels;

  constexpr bool valid(int64_t row) const { return mask == nullptr || mask[row] != 0; }
  constexpr int64_t begin(int64_t part) const { return count * part / kParts; }
  constexpr double valid_in(int64_t part) const {
    double total = 0;
    for (int64_t row = begin(part); row < begin(part + 1); ++row) total += valid(row) ? 1 : 0;
    return total;
  }
  // The sum of a channel over all parts, and that of the parts themselves.
  constexpr double of_parts(const double* sums, int64_t channel) const {
    double total = 0;
    for (int64_t p = 0; p < kParts; ++p) total += sums[p * channels + channel];
    return total;
  }
  constexpr double all(const double* counts) const {
    double total = 0;
    for (int64_t p = 0; p < kParts; ++p) total += counts[p];
    return total;
  }
};

template <typename C, typename X>
struct Forward {
  Rows rows;
  X x;
  double *counts, *sums;  // [kParts], [kParts,C]
  C *mean, *inverse;      // [C]: of the deviation

  constexpr double sum(int64_t i) const {
    double total = 0;
    for (int64_t row = rows.begin(i / rows.channels); row < rows.begin(i / rows.channels + 1);
         ++row) {
      if (rows.valid(row)) total += x.at(row * rows.channels + i % rows.channels);
    }
    return total;
  }
  constexpr double squares(int64_t i) const {
    const int64_t c = i % rows.channels;
    double total = 0;
    for (int64_t row = rows.begin(i / rows.channels); row < rows.begin(i / rows.channels + 1);
         ++row) {
      if (!rows.valid(row)) continue;
      const double centered =
          static_cast<double>(x.at(row * rows.channels + c)) - static_cast<double>(mean[c]);
      total += centered * centered;
    }
    return total;
  }
  constexpr C mean_of(int64_t c) const {
    const double n = rows.all(counts);
    return n > 0 ? static_cast<C>(rows.of_parts(sums, c) / n) : C{0};
  }
  // From sums of squares. The running statistics [C] take a share of the batch, of its variance
  // over n - 1; null: they stay. A batch without valid rows changes nothing, nor does one that is
  // not finite: its update is skipped, and the statistics would stay bad for good.
  constexpr void finish(int64_t c, C* running_mean, C* running_variance) const {
    const double n = rows.all(counts), square = rows.of_parts(sums, c);
    inverse[c] = static_cast<C>(1 / std::sqrt((n > 0 ? square / n : 0) + kEpsilon));
    if (running_mean == nullptr || n == 0) return;
    const double variance = square / (n > 1 ? n - 1 : 1);
    if (!(variance <= static_cast<double>(std::numeric_limits<C>::max()))) return;
    running_mean[c] = static_cast<C>((1 - kMomentum) * static_cast<double>(running_mean[c]) +
                                     kMomentum * static_cast<double>(mean[c]));
    running_variance[c] = static_cast<C>(
        (1 - kMomentum) * static_cast<double>(running_variance[c]) + kMomentum * variance);
  }
  // Element i of y.
  constexpr C normal(int64_t i) const {
    const int64_t c = i % rows.channels;
    return rows.valid(i / rows.channels) ? (x.at(i) - mean[c]) * inverse[c] : C{0};
  }
};

template <typename C, typename X>
struct Backward {
  Rows rows;
  X x, dy;
  const C *mean, *inverse;
  const double* counts;
  double *sums, *products;  // [kParts,C]: of dy, and of dy times the normal x

  constexpr C normal(int64_t i) const {
    const int64_t c = i % rows.channels;
    return (x.at(i) - mean[c]) * inverse[c];
  }
  constexpr double sum(int64_t i, bool times_normal) const {
    double total = 0;
    for (int64_t row = rows.begin(i / rows.channels); row < rows.begin(i / rows.channels + 1);
         ++row) {
      const int64_t at = row * rows.channels + i % rows.channels;
      if (rows.valid(row)) total += times_normal ? dy.at(at) * normal(at) : dy.at(at);
    }
    return total;
  }
  // Element i of dx, from the means [C] of dy and of dy times the normal x; null: mean and inverse
  // are constants.
  constexpr C gradient(int64_t i, const C* mean_dy, const C* mean_product) const {
    const int64_t c = i % rows.channels;
    if (!rows.valid(i / rows.channels)) return C{0};
    if (mean_dy == nullptr) return inverse[c] * dy.at(i);
    return inverse[c] * (dy.at(i) - mean_dy[c] - normal(i) * mean_product[c]);
  }
};

}  // namespace linnet::batch_norm_rule
