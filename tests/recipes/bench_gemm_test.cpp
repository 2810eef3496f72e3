// bench gemm: the threads that it tells are those that products take.
#include "recipes/engine/bench/gemm.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "core/gemm.h"
#include "core/sanitizers.h"
#include "core/threads.h"

namespace linnet {
namespace {

int64_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Threads that `work` makes in a thread of two that has made none yet: OpenMP keeps them.
int64_t threads_made(const std::function<void()>& work) {
  int64_t made = 0;
  std::thread([&] {
    set_thread_count(2);
    const int64_t before = threads_of_process();
    work();
    made = threads_of_process() - before;
  }).join();
  return made;
}

class GemmBenchThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitizer) GTEST_SKIP() << "threads end with the loop that made them";
  }
};

TEST_F(GemmBenchThreads, AreThoseThatItTells) {
  GemmBenchOptions options;
  options.runs = 1;
  int told = 0;
  const auto bench = [&] { told = bench_gemm(options)[0].threads; };
  // A little less than is shared: were its threads not limited, it would take both.
  options.sizes = {{255, 256, 256}};
  EXPECT_EQ(threads_made(bench), 0);
  EXPECT_EQ(told, 1);
  options.sizes = {{256, 256, 256}};
  EXPECT_EQ(threads_made(bench), 1);
  EXPECT_EQ(told, 2);
}

// Where loops take one thread.
TEST_F(GemmBenchThreads, OfAStepAreSharedByLargeProducts) {
  const Tensor a = Tensor::zeros({64, 1024}), b = Tensor::zeros({256, 1024}),
               c = Tensor::zeros({64, 256});
  for (const int64_t rows : {63, 64}) {
    const auto product = [&] {
      const SmallStep step(1);
      gemm(a.rows(0, rows), Transpose::no, b, Transpose::yes, c.rows(0, rows));
    };
    EXPECT_EQ(threads_made(product), rows == 64 ? 1 : 0);
  }
}

}  // namespace
}  // namespace linnet
