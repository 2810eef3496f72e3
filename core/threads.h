// Threads of the CPU backend: OpenMP behind two functions, so that no other header needs <omp.h>.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

namespace linnet {

// Threads that parallel regions use. Results are bitwise the same for a fixed count.
int thread_count();
// Throws UsageError unless count is 1 to 1024.
void set_thread_count(int count);

// Calls body(begin, end) on disjoint, contiguous parts of [0, count): one part a thread, none
// smaller than `grain` elements unless it is the last. The split depends only on count, grain and
// the number of threads. Nested calls run serially. Rethrows what a part throws (one of them, when
// several do).
template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const int64_t parts =
      std::max<int64_t>(1, std::min<int64_t>(thread_count(), count / std::max<int64_t>(1, grain)));
  if (parts == 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  const int64_t step = (count + parts - 1) / parts;
  std::exception_ptr failure;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(parts))
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = part * step;
    const int64_t end = std::min(count, begin + step);
    if (begin >= end) continue;
    try {
      body(begin, end);
    } catch (...) {
#pragma omp critical(linnet_parallel_for_failure)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace linnet
