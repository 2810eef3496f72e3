#include "core/memory_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "core/threads.h"

namespace linnet {

double read_bandwidth(size_t bytes) {
  constexpr int kRounds = 5;
  constexpr int64_t kPart = int64_t{1} << 16, kLanes = 16;  // floats
  using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
  const auto count = static_cast<int64_t>(bytes / sizeof(float)) / kPart * kPart;
  const Tensor memory = Tensor::full({std::max(count, kPart)}, 1);
  const float* values = memory.data<float>();
  double best = std::numeric_limits<double>::infinity();
  std::vector<float> sums(static_cast<size_t>(memory.elements() / kPart));
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(std::ssize(sums), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        Vector lanes[4] = {};
        for (int64_t i = part * kPart; i < (part + 1) * kPart; i += 4 * kLanes) {
          for (int64_t j = 0; j < 4; ++j) {
            Vector next;
            std::memcpy(&next, values + i + j * kLanes, sizeof(next));
            lanes[j] += next;
          }
        }
        const Vector all = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
        sums[static_cast<size_t>(part)] = all[0] + all[kLanes - 1];
      }
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  require(sums.front() > 0, "read_bandwidth: the sums are lost");  // they are computed
  return static_cast<double>(memory.bytes()) / best;
}

}  // namespace linnet
