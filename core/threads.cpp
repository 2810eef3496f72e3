#include "core/threads.h"

#include <omp.h>

#include "core/error.h"

namespace linnet {

// More than any machine has; OpenMP crashes when asked for what the system cannot start.
constexpr int kMostThreads = 1024;

int thread_count() {
  return omp_in_parallel() != 0 ? 1 : omp_get_max_threads();
}

void set_thread_count(int count) {
  require_usage(count >= 1 && count <= kMostThreads, "threads must be 1 to ", kMostThreads,
                ", got ", count);
  omp_set_num_threads(count);
}

}  // namespace linnet
