// Parallel loops: every task once, exceptions reach the caller, no thread sees another's objects.
#include "core/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>
#include <vector>

#include "core/error.h"

namespace linnet {
namespace {

class ParallelLoops : public ::testing::Test {
 protected:
  void SetUp() override { set_thread_count(3); }
  void TearDown() override { set_thread_count(before_); }

 private:
  int before_ = thread_count();
};

TEST_F(ParallelLoops, EveryElementOnceWhateverTheSizes) {
  for (const int64_t count : {0, 1, 2, 3, 4, 7, 100}) {
    for (const int64_t grain : {0, 1, 3, 1000}) {
      std::vector<int> visits(static_cast<size_t>(count));
      parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      EXPECT_EQ(visits, std::vector<int>(visits.size(), 1)) << count << " by " << grain;
    }
    for (const int64_t chunk : {1, 2, 1000}) {
      std::vector<int> visits(static_cast<size_t>(count));
      parallel_tasks(count, chunk,
                     [&] { return [&](int64_t task) { ++visits[static_cast<size_t>(task)]; }; });
      EXPECT_EQ(visits, std::vector<int>(visits.size(), 1)) << count << " by " << chunk;
    }
  }
}

TEST_F(ParallelLoops, TheCallerSeesWhatAThreadThrows) {
  for (const int64_t broken : {0, 5, 9}) {
    EXPECT_THROW(parallel_for(10, 1,
                              [&](int64_t begin, int64_t end) {
                                if (begin <= broken && broken < end) throw Error("broken");
                              }),
                 Error);
    EXPECT_THROW(parallel_tasks(10, 1,
                                [&] {
                                  return [&](int64_t task) {
                                    if (task == broken) throw Error("broken");
                                  };
                                }),
                 Error);
  }
  // All at once, before any task: a thread that gets no memory for its working space.
  EXPECT_THROW(parallel_tasks(10, 1,
                              [] {
                                throw std::bad_alloc();
                                return [](int64_t) {};
                              }),
               std::bad_alloc);
  EXPECT_EQ(thread_count(), 3) << "still inside of a team";
}

TEST_F(ParallelLoops, WhatTheBodyHoldsBelongsToOneThread) {
  std::atomic<int> wrong{0};
  parallel_tasks(200, 1, [&] {
    return [&, owner = std::this_thread::get_id(), own = 0](int64_t) mutable {
      wrong += owner != std::this_thread::get_id();
      const int before = own++;
      std::this_thread::yield();
      wrong += own != before + 1;
    };
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(ParallelLoops, NestedWorkIsSerial) {
  std::atomic<int> nested{0}, threads{0};
  parallel_for(3, 1, [&](int64_t, int64_t) {
    threads += thread_count();
    const auto outer = std::this_thread::get_id();
    parallel_for(3, 1, [&](int64_t, int64_t) { nested += outer != std::this_thread::get_id(); });
  });
  EXPECT_EQ(threads, 3);
  EXPECT_EQ(nested, 0);
}

TEST_F(ParallelLoops, AStepOfFewTokensTakesOneThreadUnlessItsWorkIsLarge) {
  {
    const SmallStep step(kMinSharedWork - 1);
    EXPECT_EQ(thread_count(), 1);
    {
      const KnownWork product(kMinSharedWork);
      EXPECT_EQ(thread_count(), 3);
    }
    EXPECT_EQ(thread_count(), 1);
    {
      const SmallStep nested(kMinSharedWork);
      EXPECT_EQ(thread_count(), 3);
      const KnownWork product(kMinSharedWork - 1);
      EXPECT_EQ(thread_count(), 1);
    }
    EXPECT_EQ(thread_count(), 1);
    // The step belongs to this thread: work on another may take all of its own.
    int before = 0, within = 0, after = 0;
    std::thread([&] {
      before = thread_count();
      {
        const KnownWork product(kMinSharedWork);
        within = thread_count();
      }
      after = thread_count();
    }).join();
    EXPECT_EQ(within, before);
    EXPECT_EQ(after, before);
    EXPECT_EQ(thread_count(), 1);
  }
  EXPECT_EQ(thread_count(), 3);
}

TEST_F(ParallelLoops, KnownWorkTakesOneThreadUnlessItIsLarge) {
  EXPECT_EQ(threads_for(kMinSharedWork - 1), 1);
  EXPECT_EQ(threads_for(kMinSharedWork), 3);
  {
    const KnownWork small(kMinSharedWork - 1);
    EXPECT_EQ(thread_count(), 1);
    const KnownWork within(kMinSharedWork);
    EXPECT_EQ(thread_count(), 1);
  }
  const KnownWork large(kMinSharedWork);
  EXPECT_EQ(thread_count(), 3);
}

}  // namespace
}  // namespace linnet
