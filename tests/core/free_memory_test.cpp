#include "core/free_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "core/tensor.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

TEST(FreeMemory, IsWhatTheLimitOfTheProcessLeaves) {
  const size_t free = free_memory({});
  ASSERT_GT(free, 0u);
  EXPECT_LT(free, size_t{1} << 50);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none{1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  const size_t left = free_memory({});
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(left, 0u);
}

TEST(FreeMemory, ABlockThatDoesNotFitIsNotAskedFor) {
  const auto elements = static_cast<int64_t>(free_memory({}) / 2);
  try {
    Tensor::empty({elements});
    ADD_FAILURE() << "twice the free memory was given";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.requested, static_cast<size_t>(elements) * 4);
    EXPECT_GT(error.free, 0u);
    EXPECT_LT(error.free, error.requested);
  }
}

TEST(FreeMemory, HasTextForPeople) {
  EXPECT_EQ(memory_text(0), "0 bytes");
  EXPECT_EQ(memory_text(1023), "1023 bytes");
  EXPECT_EQ(memory_text(1536), "1.5 KiB");
  EXPECT_EQ(memory_text(2.0 * (1 << 30)), "2 GiB");
  EXPECT_EQ(memory_text(17.3 * (1 << 20)), "17 MiB");
  EXPECT_EQ(memory_text(1e30), "867361737988 EiB");
}

}  // namespace
}  // namespace linnet
