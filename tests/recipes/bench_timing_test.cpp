// How benchmarks time, and what they compare results with.
#include "recipes/engine/bench/timing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <thread>

#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

Tensor row(const std::vector<float>& values) {
  return Tensor::from(values, {std::ssize(values)});
}

TEST(WorstError, IsAShareOfTheLargestNumber) {
  EXPECT_EQ(worst_error(row({1, 2, -4}), row({1, 2, -4})), 0);
  EXPECT_NEAR(worst_error(row({1, 3, -4}), row({1, 2, -4})), 0.25, 1e-12);
  EXPECT_NEAR(worst_error(row({1, 2}).to(DType::bf16), row({1, 4})), 0.5, 1e-12);
  EXPECT_THROW(worst_error(row({1}), row({1, 2})), Error);
}

TEST(WorstError, KeepsNan) {
  const float nan = std::nanf("");
  EXPECT_TRUE(std::isnan(worst_error(row({nan, 2}), row({1, 2}))));
  EXPECT_TRUE(std::isnan(worst_error(row({1, 2}), row({nan, 2}))));
}

TEST(RunTime, TheLeastOfOneThreadIsWhatItComputed) {
  const test::Threads use(1);
  const RunTime time =
      time_runs({}, 3, [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  EXPECT_GE(time.median, 10);
  EXPECT_LT(time.least, 5);
  EXPECT_GT(time.least, 0);
}

// The calling thread may have left the work to the others.
TEST(RunTime, TheLeastOfSeveralThreadsIsByTheClock) {
  const test::Threads use(2);
  const RunTime time =
      time_runs({}, 3, [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  EXPECT_GE(time.least, 10);
  EXPECT_LE(time.least, time.median);
}

TEST(RunTime, RunsAreAtMostThoseAskedForAfterOneThatWarmsUp) {
  int calls = 0;
  time_runs({}, 4, [&] { ++calls; });
  EXPECT_EQ(calls, 5);
}

TEST(RunTime, WhatPreparesARunComesBeforeEachAndIsNotTimed) {
  const test::Threads use(1);
  std::string order;
  const auto wait = [&] {
    const double start = static_cast<double>(std::clock());
    while (static_cast<double>(std::clock()) - start < 0.01 * CLOCKS_PER_SEC) {
    }
    order += 'p';
  };
  const RunTime time = time_runs(
      {}, 2, [&] { order += 'r'; }, wait);
  EXPECT_EQ(order, "prprpr");
  EXPECT_LT(time.least, 5);
}

}  // namespace
}  // namespace linnet
