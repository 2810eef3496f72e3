#include "core/memory_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "core/threads.h"

namespace linnet {
namespace {

// Rows of one part of the memory, which are read together as products read rows of a matrix: the
// processor asks ahead for each of them.
constexpr int64_t kRows = 8, kRowLength = int64_t{1} << 13;  // floats
constexpr int64_t kPart = kRows * kRowLength;

float sum_of_part(const float* values) {
  constexpr int64_t kLanes = 8;  // a register: compilers keep wider vectors in memory
  using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
  Vector sums[kRows] = {};
  for (int64_t i = 0; i < kRowLength; i += kLanes) {
    for (int64_t row = 0; row < kRows; ++row) {
      Vector next;
      std::memcpy(&next, values + row * kRowLength + i, sizeof(next));
      sums[row] += next;
    }
  }
  Vector all = {};
  for (const Vector& sum : sums) all += sum;
  float total = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += all[lane];
  return total;
}

}  // namespace

double read_bandwidth(size_t bytes) {
  using Seconds = std::chrono::duration<double>;
  constexpr int kRounds = 5;
  constexpr Seconds kLeast{0.25};  // as other programs disturb short times
  const auto count = static_cast<int64_t>(bytes / sizeof(float)) / kPart * kPart;
  const Tensor memory = Tensor::full({std::max(count, kPart)}, 1);
  const float* values = memory.data<float>();
  std::vector<float> sums(static_cast<size_t>(memory.elements() / kPart));
  Seconds best{std::numeric_limits<double>::infinity()}, all{0};
  for (int round = 0; round < kRounds || all < kLeast; ++round) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(std::ssize(sums), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        sums[static_cast<size_t>(part)] = sum_of_part(values + part * kPart);
      }
    });
    const Seconds seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds);
    all += seconds;
  }
  require(sums.front() == kPart, "read_bandwidth: the sums are lost");  // they are computed
  return static_cast<double>(memory.bytes()) / best.count();
}

}  // namespace linnet
