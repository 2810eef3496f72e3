// A limit of memory below the machine's, for benchmarks.
#pragma once

#include <cstddef>

namespace linnet {

// While it lives, tensors on the CPU hold at most so many bytes together: an allocation beyond them
// throws OutOfMemory. One at a time.
class CpuMemoryLimit {
 public:
  explicit CpuMemoryLimit(size_t bytes);
  ~CpuMemoryLimit();
  CpuMemoryLimit(const CpuMemoryLimit&) = delete;
  CpuMemoryLimit& operator=(const CpuMemoryLimit&) = delete;
};

}  // namespace linnet
