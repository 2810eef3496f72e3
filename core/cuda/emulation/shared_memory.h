// The shared memory of the block that runs. Inside core/cuda/emulation only.
#pragma once

#include <cstddef>

namespace linnet::emulation {

// Before a block: room for `bytes` of arrays, which take_shared gives out, all NaN between red
// zones.
void renew_shared(size_t bytes);
// The address that stands for barrier 0 or 1, the fence (2) or a meeting of a warp (4 and more, of
// kOrderTokens) to ThreadSanitizer. In the block's memory, so that the order of one block orders no
// other.
inline constexpr size_t kOrderTokens = 1024;
void* order_token(size_t index);

}  // namespace linnet::emulation
