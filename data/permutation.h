// A random order of examples that needs no memory: a permutation computed index by index.
#pragma once

#include <cstdint>

namespace linnet {

// The `index`-th element of a pseudo-random permutation of 0 .. count-1 that depends only on `seed`
// and `epoch`: a Feistel network (Luby and Rackoff 1988) on the next power of four, walked until it
// lands below count. Throws Error unless 0 <= index < count.
int64_t permuted_index(uint64_t seed, int64_t epoch, int64_t index, int64_t count);

}  // namespace linnet
