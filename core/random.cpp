#include "core/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace linnet {

void RandomKey::fill_words(uint64_t first, int64_t count, uint32_t* words) const {
  constexpr int64_t kLanes = 64;  // as arrays, so that the compiler takes them all at once
  for (int64_t start = 0; start < count; start += kLanes) {
    uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t element = first + static_cast<uint64_t>(start + lane);
      c0[lane] = static_cast<uint32_t>(element);
      c1[lane] = static_cast<uint32_t>(element >> 32);
      c2[lane] = static_cast<uint32_t>(site);
      c3[lane] = static_cast<uint32_t>(site >> 32);
    }
    auto k0 = static_cast<uint32_t>(mixed_seed());
    auto k1 = static_cast<uint32_t>(mixed_seed() >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        philox_round(c0[lane], c1[lane], c2[lane], c3[lane], k0, k1);
      }
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    const int64_t lanes = std::min(kLanes, count - start);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      uint32_t* to = words + 4 * (start + lane);
      to[0] = c0[lane];
      to[1] = c1[lane];
      to[2] = c2[lane];
      to[3] = c3[lane];
    }
  }
}

double RandomKey::normal(uint64_t element) const {
  const auto word = words(element);
  const double u = (word[0] + 0.5) * 0x1p-32;
  const double v = (word[1] + 0.5) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

uint64_t RandomKey::below(uint64_t element, uint64_t count) const {
  const auto word = words(element);
  const uint64_t wide = (static_cast<uint64_t>(word[1]) << 32) | word[0];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(wide) * count) >> 64);
}

}  // namespace linnet
