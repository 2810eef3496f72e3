// Which tokens read the one before them: a function that the CPU and the device share.
#pragma once

#include "core/tensor.h"

namespace linnet {

struct TokenBefore {
  int64_t T;
  const uint8_t* mask;       // [B,T], or null: all valid
  const int32_t* segments;   // [B,T], or null: one document a row
  const uint8_t* past_mask;  // [B]: of the tokens before the first ones, or null: all valid

  constexpr bool readable(int64_t i) const {
    if (i % T == 0) return past_mask == nullptr || past_mask[i / T] != 0;
    if (segments != nullptr && segments[i] != segments[i - 1]) return false;
    return mask == nullptr || mask[i - 1] != 0;
  }
};

namespace cuda {

// reads u8 [B,T,1]; the rule's pointers are device memory.
void fill_readable(const TokenBefore& rule, const Tensor& reads);

}  // namespace cuda
}  // namespace linnet
