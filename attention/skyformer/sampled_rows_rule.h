// One element of each of the operations on sampled rows: pure functions that the CPU and the device
// share.
#pragma once

#include <cstdint>

namespace linnet::sampled_rows_rule {

// The valid token that a draw in [0, 1) chooses; -1 if there is none. valid may be null.
constexpr int32_t token_of(double draw, const uint8_t* valid, int64_t T) {
  int64_t count = 0;
  for (int64_t t = 0; t < T; ++t) count += valid == nullptr || valid[t] != 0 ? 1 : 0;
  int64_t left = static_cast<int64_t>(draw * static_cast<double>(count));
  if (left > count - 1) left = count - 1;
  for (int64_t t = 0; t < T; ++t) {
    if ((valid == nullptr || valid[t] != 0) && left-- == 0) return static_cast<int32_t>(t);
  }
  return -1;
}

}  // namespace linnet::sampled_rows_rule
