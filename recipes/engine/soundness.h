// Which losses are those of ruined weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace linnet {

// Four times the loss of a uniform guess among `choices` (the words of the vocabulary, or classes),
// and at least 10 nats: fresh weights and overfitted ones stay below it, diverged ones do not.
inline double ruined_loss(int64_t choices) {
  return std::max(4 * std::log(static_cast<double>(choices)), 10.0);
}

// False for NaN, too.
inline bool is_sound_loss(double loss, int64_t choices) {
  return loss <= ruined_loss(choices);
}

}  // namespace linnet
