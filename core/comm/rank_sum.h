// The sums of collective operations on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace linnet {

// Writes the sums of `count` elements of all sources to `into`, which may be one of them. Sources
// are added in their order: bf16 in f32 and rounded once, integers modulo their range. The result
// does not depend on the number of threads. Throws Error for u8 and bool.
void sum_in_order(const std::vector<const void*>& sources, void* into, int64_t count, DType dtype);

}  // namespace linnet
