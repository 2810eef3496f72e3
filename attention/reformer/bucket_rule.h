// The bucket of one vector in one round: the same on the host and in kernels.
#pragma once

#include <cstdint>

#include "attention/reformer/buckets.h"

namespace linnet {

struct BucketHash {
  BucketRule rule;
  int64_t T = 0, H = 0, rounds = 1;
  const uint8_t* valid = nullptr;  // [B,T]; null: all
  const int32_t* spans = nullptr;  // [2,B,T]; null: whole rows
  int64_t tokens = 0;              // B T

  // Item (b, t, h, round); product(r): the product of its vector with direction r of the round.
  template <typename Product>
  constexpr int32_t bucket(int64_t item, const Product& product) const {
    const int64_t token = item / rounds / H;
    const int64_t length = spans == nullptr ? T : spans[tokens + token] - spans[token];
    const BucketFactors factors = rule.factors(length);
    if (valid != nullptr && valid[token] == 0) return static_cast<int32_t>(factors.count());
    if (length <= rule.chunk) return 0;
    int64_t result = 0, direction = 0;
    for (int part = 0; part < (factors.second > 1 ? 2 : 1); ++part) {
      const int64_t half = (part == 0 ? factors.first : factors.second) / 2;
      int64_t high = 0, low = 0;
      double highest = product(direction), lowest = highest;
      for (int64_t r = 1; r < half; ++r) {
        const double value = product(direction + r);
        if (value > highest) {
          highest = value;
          high = r;
        }
        if (value < lowest) {
          lowest = value;
          low = r;
        }
      }
      result += (part == 0 ? 1 : factors.first) * (highest >= -lowest ? high : half + low);
      direction += half;
    }
    return static_cast<int32_t>(result);
  }
};

}  // namespace linnet
