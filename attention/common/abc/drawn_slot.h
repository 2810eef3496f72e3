// The draw of a slot, the same on the host and in kernels.
#pragma once

#include "core/random.h"

namespace linnet {

// Uniform in [0, slots), as far as 32 random bits go.
constexpr int32_t drawn_slot(const RandomKey& key, int64_t example, int64_t position, int64_t head,
                             int64_t heads, int64_t slots) {
  const uint64_t element =
      random_element(static_cast<uint64_t>(example), static_cast<uint64_t>(position),
                     static_cast<uint64_t>(head), static_cast<uint64_t>(heads));
  return static_cast<int32_t>(uint64_t{key.words(element)[0]} * static_cast<uint64_t>(slots) >> 32);
}

}  // namespace linnet
