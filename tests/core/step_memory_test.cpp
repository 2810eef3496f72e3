// Blocks that a step frees and takes again.
#include "core/step_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "core/sanitizers.h"
#include "core/tensor.h"
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace linnet {
namespace {

#if defined(__GLIBC__)
constexpr bool kUsed = !kAddressSanitizer && !kThreadSanitizer;
size_t usable_bytes(void* block) {
  return malloc_usable_size(block);
}
#else
constexpr bool kUsed = false;
size_t usable_bytes(void* /*block*/) {
  return 1;
}
#endif

TEST(StepMemory, TakesAFreedBlockAgain) {
  if (!kUsed) GTEST_SKIP() << "nothing is kept in this build";
  EXPECT_EQ(take_step_block(100, false), nullptr);
  const StepMemory memory;
  for (const bool aligned : {false, true}) {
    for (const size_t bytes : {1, 16, 17, 64, 100, 1024, 1025, 2048, 5000, 65536, 1 << 20}) {
      void* block = take_step_block(bytes, aligned);
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % (aligned ? 64 : 16), 0U);
      std::memset(block, 7, bytes);
      // The heap may give more than it was asked for.
      const size_t all = std::bit_floor(usable_bytes(block));
      ASSERT_TRUE(keep_step_block(block, aligned));
      EXPECT_EQ(take_step_block(std::min(all, size_t{1} << 20), aligned), block) << bytes;
      std::free(block);
    }
  }
  EXPECT_EQ(take_step_block((1 << 20) + 1, false), nullptr) << "too large";
}

TEST(StepMemory, ServesNewAndHostTensors) {
  if (!kUsed) GTEST_SKIP() << "nothing is kept in this build";
  const StepMemory memory;
  const auto of_new = [] {
    void* block = ::operator new(400);
    const auto at = reinterpret_cast<uintptr_t>(block);
    ::operator delete(block);
    return at;
  };
  const uintptr_t first = of_new();
  EXPECT_EQ(of_new(), first);
  const auto of_aligned_new = [](size_t alignment) {
    const std::align_val_t aligned{alignment};
    void* block = ::operator new(100, aligned);
    const auto at = reinterpret_cast<uintptr_t>(block);
    std::memset(block, 7, 100);
    ::operator delete(block, aligned);
    return at;
  };
  for (const size_t alignment : {16, 32, 64, 128, 4096}) {
    const uintptr_t block = of_aligned_new(alignment);
    EXPECT_EQ(block % alignment, 0U);
    if (alignment <= 64) {
      EXPECT_EQ(of_aligned_new(alignment), block);
    }
  }
  const auto of_tensor = [] { return reinterpret_cast<uintptr_t>(Tensor::zeros({10, 10}).raw()); };
  const uintptr_t elements = of_tensor();
  EXPECT_EQ(of_tensor(), elements);
}

TEST(StepMemory, IsOfItsThreadAndOfTheOutermost) {
  if (!kUsed) GTEST_SKIP() << "nothing is kept in this build";
  void* before = std::malloc(48);
  EXPECT_FALSE(keep_step_block(before, false));
  {
    const StepMemory memory;
    { const StepMemory inner; }
    EXPECT_TRUE(keep_step_block(before, false)) << "the inner one ended nothing";
    std::thread([] { EXPECT_EQ(take_step_block(48, false), nullptr); }).join();
    // What one thread allocates in a step another may free outside of one, and the reverse.
    auto shared = std::make_unique<std::vector<int>>(1000, 3);
    std::thread([moved = std::move(shared)]() mutable { moved.reset(); }).join();
  }
  EXPECT_EQ(take_step_block(48, false), nullptr);
}

TEST(StepMemory, GivesALargerBlockWhereNoneWaits) {
  if (!kUsed) GTEST_SKIP() << "nothing is kept in this build";
  const StepMemory memory;
  // Larger than what it begins with.
  constexpr size_t kBytes = size_t{128} << 10;
  void* block = take_step_block(kBytes, true);
  ASSERT_TRUE(keep_step_block(block, true));
  void* other = take_step_block(kBytes, false);
  EXPECT_NE(other, block) << "those that are aligned wait apart";
  EXPECT_EQ(take_step_block(kBytes / 2, true), block) << "a class below its own";
  std::free(block);
  std::free(other);
}

TEST(StepMemory, KeepsSoMuchAtMost) {
  if (!kUsed) GTEST_SKIP() << "nothing is kept in this build";
  const StepMemory memory;
  int kept = 0;
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(std::malloc(1 << 20));
  for (void* block : blocks) {
    if (keep_step_block(block, false)) {
      ++kept;
    } else {
      std::free(block);
    }
  }
  EXPECT_LE(kept, 16);
  EXPECT_GE(kept, 14);
}

TEST(StepMemory, LeavesLargeBlocksToTheHeap) {
  if (!kUsed) GTEST_SKIP() << "nothing is kept in this build";
  const StepMemory memory;
  void* large = std::malloc(size_t{4} << 20);
  ASSERT_NE(large, nullptr);
  EXPECT_FALSE(keep_step_block(large, false));
  std::free(large);
}

}  // namespace
}  // namespace linnet
