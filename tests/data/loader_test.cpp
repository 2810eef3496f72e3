// Tests of the prefetching loader.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "core/error.h"

namespace linnet {
namespace {

Batch numbered(int64_t index) {
  Batch batch;
  batch.B = index;
  return batch;
}

TEST(PrefetchingLoader, HandsOutBatchesInOrderThenNothing) {
  PrefetchingLoader loader(numbered, 5, 200, 3);
  for (int64_t i = 5; i < 200; ++i) {
    const auto batch = loader.next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(batch->B, i);
  }
  EXPECT_FALSE(loader.next().has_value());
  EXPECT_FALSE(loader.next().has_value());
  EXPECT_FALSE(PrefetchingLoader(numbered, 3, 3).next().has_value());
}

TEST(PrefetchingLoader, NeverRunsFurtherAheadThanItsDepth) {
  std::atomic<int64_t> made{0};
  PrefetchingLoader loader(
      [&](int64_t index) {
        ++made;
        return numbered(index);
      },
      0, {}, 2);
  for (int64_t taken = 1; taken <= 20; ++taken) {
    loader.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_LE(made, taken + 2);
  }
}

TEST(PrefetchingLoader, AnExceptionReachesTheConsumerInItsTurn) {
  PrefetchingLoader loader(
      [](int64_t index) {
        require(index < 3, "broken at ", index);
        return numbered(index);
      },
      0);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(loader.next()->B, i);
  for (int repeat = 0; repeat < 2; ++repeat) {
    try {
      loader.next();
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "broken at 3");
    }
  }
}

TEST(PrefetchingLoader, CanBeLeftAtAnyTime) {
  for (int trial = 0; trial < 50; ++trial) {
    PrefetchingLoader loader(numbered, 0, {}, 2);
    for (int i = 0; i < trial % 5; ++i) loader.next();
  }
}

}  // namespace
}  // namespace linnet
