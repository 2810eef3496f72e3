#include "core/free_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <limits>

#include "core/tensor.h"
#include "tests/data/temporary_folder.h"
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

// Files of the host's cache count as used until their memory is wanted.
TEST(FreeMemory, CachedFilesOfAControlGroupGiveWay) {
  const test::TemporaryFolder second;
  second.write("memory.max", "1000\n");
  second.write("memory.current", "900\n");
  EXPECT_EQ(left_in_group(second.path()), 100u);
  second.write("memory.stat", "anon 100\nfile 800\ninactive_file 300\nactive_file 450\nshmem 50\n");
  EXPECT_EQ(left_in_group(second.path()), 850u);
  second.write("memory.max", "max\n");
  EXPECT_EQ(left_in_group(second.path()), std::numeric_limits<size_t>::max());
  const test::TemporaryFolder first;
  first.write("memory.limit_in_bytes", "1000\n");
  first.write("memory.usage_in_bytes", "900\n");
  first.write("memory.stat", "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 450\n");
  EXPECT_EQ(left_in_group(first.path()), 850u);
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
