// How fast the machine reads memory.
#pragma once

#include <cstddef>

namespace linnet {

// Bytes per second at which all threads of the CPU read so many bytes (at least 256 KiB) again and
// again: the best of several rounds.
double read_bandwidth(size_t bytes);

}  // namespace linnet
