// Lines of a tensor along one dimension: for the CPU and for kernels.
#pragma once

#include <cstdint>

namespace linnet {

// x [outer, n, inner] has outer * inner lines of n elements; element j of a line is at(line, j).
struct Lines {
  int64_t outer, n, inner;

  constexpr int64_t count() const { return outer * inner; }
  constexpr int64_t at(int64_t line, int64_t j) const {
    return (line / inner * n + j) * inner + line % inner;
  }
};

}  // namespace linnet
