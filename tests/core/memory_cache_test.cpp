// Host memory kept for reuse: the same block again, little more than the peak, several threads.
#include "core/memory_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "core/sanitizers.h"

// Functions of the sanitizers' own libraries: there or not, whatever a compiler's macros say.
extern "C" {
void __asan_init() __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)
void __tsan_init() __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)
}

namespace linnet {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

constexpr bool kKeeps = !kAddressSanitizer && !kThreadSanitizer;

TEST(MemoryCache, KnowsWhetherASanitizerWatches) {
  EXPECT_EQ(kAddressSanitizer, __asan_init != nullptr);
  EXPECT_EQ(kThreadSanitizer, __tsan_init != nullptr);
}

TEST(MemoryCache, GivesAFreedBlockOutAgain) {
  MemoryCache cache;
  void* first = cache.allocate(kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  std::memset(first, 1, kMiB);
  cache.release(first, kMiB);
  EXPECT_EQ(cache.waiting_bytes(), kKeeps ? kMiB : 0);
  void* again = cache.allocate(kMiB - 1);  // the same size class
  EXPECT_TRUE(!kKeeps || again == first);
  EXPECT_EQ(cache.waiting_bytes(), 0u);
  std::memset(again, 2, kMiB - 1);
  void* other = cache.allocate(kMiB);
  EXPECT_NE(other, again);
  cache.release(other, kMiB);
  cache.release(again, kMiB - 1);
}

TEST(MemoryCache, LargeBlocksBeginWithAHugePage) {
  MemoryCache cache;
  for (const size_t bytes : {2 * kMiB, 5 * kMiB + 1}) {
    void* block = cache.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % (kKeeps ? 2 * kMiB : 64), 0u) << bytes;
    std::memset(block, 1, bytes);
    cache.release(block, bytes);
  }
}

// At most the peak in use and a quarter of it may be held.
TEST(MemoryCache, HoldsLittleMoreThanWasInUseAtOnce) {
  MemoryCache cache;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(cache.allocate(kMiB));
  for (void* block : blocks) cache.release(block, kMiB);
  EXPECT_EQ(cache.waiting_bytes(), kKeeps ? 8 * kMiB : 0);
  void* large = cache.allocate(6 * kMiB);  // no block fits: four of eight have to go
  EXPECT_EQ(cache.waiting_bytes(), kKeeps ? 4 * kMiB : 0);
  void* larger = cache.allocate(100 * kMiB);
  EXPECT_EQ(cache.waiting_bytes(), 0u);
  cache.release(large, 6 * kMiB);
  cache.release(larger, 100 * kMiB);
  // Ever new sizes, one at a time, stay within the peak of 106 MiB and a quarter.
  for (size_t size = kMiB; size < 90 * kMiB; size += 777777) {
    cache.release(cache.allocate(size), size);
    EXPECT_LE(cache.waiting_bytes(), (106 + 106 / 8) * 5 / 4 * kMiB);
  }
}

// No more than 256 MiB, however large the peak is. (Pages that nobody writes to cost nothing.)
TEST(MemoryCache, SpareRoomIsBounded) {
  if (!kKeeps) GTEST_SKIP() << "sanitizers keep nothing";
  MemoryCache cache;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(cache.allocate(512 * kMiB));
  for (void* block : blocks) cache.release(block, 512 * kMiB);
  void* large = cache.allocate(2048 * kMiB);
  EXPECT_EQ(cache.waiting_bytes(), 2048 * kMiB);  // of the 2304 that may wait
  cache.release(large, 2048 * kMiB);
}

// Never are more than 22 MiB in use, but blocks of 2 MiB are three and of 4 MiB five.
TEST(MemoryCache, StepsOfSeveralSizesKeepAllTheirBlocks) {
  if (!kKeeps) GTEST_SKIP() << "sanitizers keep nothing";
  MemoryCache cache;
  for (int step = 0; step < 4; ++step) {
    std::vector<void*> small, large;
    for (int i = 0; i < 3; ++i) small.push_back(cache.allocate(2 * kMiB));
    for (int i = 0; i < 4; ++i) large.push_back(cache.allocate(4 * kMiB));
    for (int i = 0; i < 2; ++i) cache.release(small[static_cast<size_t>(i)], 2 * kMiB);
    large.push_back(cache.allocate(4 * kMiB));
    cache.release(small.back(), 2 * kMiB);
    for (void* block : large) cache.release(block, 4 * kMiB);
    EXPECT_EQ(cache.waiting_bytes(), 26 * kMiB) << "step " << step;
  }
}

// Steps of other sizes than those before them reuse their blocks.
TEST(MemoryCache, LargeBlocksServeRequestsOfAtLeastHalfTheirSize) {
  if (!kKeeps) GTEST_SKIP() << "sanitizers keep nothing";
  MemoryCache cache;
  cache.release(cache.allocate(100 * kMiB), 100 * kMiB);  // so much may be held
  void* large = cache.allocate(32 * kMiB);
  cache.release(large, 32 * kMiB);
  void* half = cache.allocate(16 * kMiB);
  EXPECT_EQ(half, large);
  EXPECT_EQ(cache.waiting_bytes(), 0u);
  void* other = cache.allocate(16 * kMiB);
  cache.release(half, 16 * kMiB);
  cache.release(other, 16 * kMiB);
  EXPECT_EQ(cache.waiting_bytes(), 48 * kMiB);
  // The block that suits exactly, though the larger one would do.
  void* again = cache.allocate(16 * kMiB);
  EXPECT_EQ(again, other);
  void* whole = cache.allocate(32 * kMiB);
  EXPECT_EQ(whole, large);
  cache.release(whole, 32 * kMiB);
  cache.release(again, 16 * kMiB);
  // Less than half: its pages stay for others.
  void* small = cache.allocate(7 * kMiB);
  EXPECT_NE(small, other);
  cache.release(small, 7 * kMiB);
}

// Half of each block is room that nobody requested.
TEST(MemoryCache, RoomInsideBlocksDoesNotRaiseWhatIsKept) {
  MemoryCache cache;
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(cache.allocate(32 * kMiB));
  for (void* block : blocks) cache.release(block, 32 * kMiB);
  blocks.clear();
  for (int i = 0; i < 8; ++i) blocks.push_back(cache.allocate(16 * kMiB));
  for (void* block : blocks) {
    cache.release(block, 16 * kMiB);
    EXPECT_LE(cache.waiting_bytes(), 160 * kMiB);  // the peak of 128 and a quarter
  }
  EXPECT_GE(cache.waiting_bytes(), kKeeps ? 96 * kMiB : 0);
}

TEST(MemoryCache, SmallBlocksAreLeftToMalloc) {
  MemoryCache cache;
  void* small = cache.allocate(100);
  cache.release(small, 100);
  EXPECT_EQ(cache.waiting_bytes(), 0u);
}

TEST(MemoryCache, RefusesWhatCannotBe) {
  MemoryCache cache;
  EXPECT_EQ(cache.allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(cache.allocate(SIZE_MAX / 2), nullptr);
}

TEST(MemoryCache, ThreadsGetBlocksOfTheirOwn) {
  MemoryCache cache;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, &wrong, t] {
      for (int round = 0; round < 200; ++round) {
        const size_t bytes = size_t{65536} << (round % 3);
        auto* memory = static_cast<unsigned char*>(cache.allocate(bytes));
        std::memset(memory, t, bytes);
        std::this_thread::yield();
        for (size_t i = 0; i < bytes; i += 4096) wrong[t] += memory[i] != t;
        cache.release(memory, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace linnet
