#include "core/free_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "core/sanitizers.h"
#include "core/tensor.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

TEST(FreeMemory, IsWhatTheLimitOfTheProcessLeaves) {
  if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "sanitizers reserve more themselves";
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

// While it lives, absolute paths lead below a folder.
class OtherSystem final : public FileSystem {
 public:
  explicit OtherSystem(std::string root) : root_(std::move(root)) { replace_file_system(this); }
  ~OtherSystem() override { replace_file_system(nullptr); }
  OtherSystem(const OtherSystem&) = delete;
  OtherSystem& operator=(const OtherSystem&) = delete;
  int open(const std::string& path, OpenMode mode) override {
    return FileSystem::open(root_ + path, mode);
  }
  std::optional<FileStatus> status(const std::string& path) override {
    return FileSystem::status(root_ + path);
  }

 private:
  std::string root_;
};

// Bytes that a system of these files has left.
size_t free_with(const std::vector<std::pair<std::string, std::string>>& files) {
  const test::ScratchDirectory scratch;
  for (const auto& [name, text] : files) {
    create_directories(parent_path(scratch / name));
    write_file(scratch / name, text);
  }
  const OtherSystem system(scratch.path());
  return free_memory({});
}

TEST(FreeMemory, OfAnySystem) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_EQ(free_with({}), limit.rlim_cur) << "the system does not tell";
  const std::pair<std::string, std::string> machine = {
      "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:  8000 kB\nSwapFree: 1000 kB\n"};
  EXPECT_EQ(free_with({machine}), 9000u * 1024) << "without control groups";
  const std::pair<std::string, std::string> group = {"proc/self/cgroup", "0::/a/b\n"},
                                            older = {"proc/self/cgroup", "4:memory:/a\n2:cpu:/\n"};
  const std::string folder = "sys/fs/cgroup/a/", older_folder = "sys/fs/cgroup/memory/";
  EXPECT_EQ(free_with({machine,
                       group,
                       {folder + "b/memory.max", "max\n"},
                       {folder + "b/memory.current", "100\n"},
                       {folder + "memory.max", "5000\n"},
                       {folder + "memory.current", "4500\n"},
                       {folder + "memory.stat", "file 900\nactive_file 300\ninactive_file 600\n"}}),
            1400u);
  EXPECT_EQ(free_with({machine,
                       older,
                       {older_folder + "memory.limit_in_bytes", "5000\n"},
                       {older_folder + "memory.usage_in_bytes", "4500\n"},
                       {older_folder + "memory.stat",
                        "inactive_file 1\ntotal_inactive_file 600\ntotal_active_file 300\n"}}),
            1400u)
      << "the group's own folder is not seen from inside of it";
  EXPECT_EQ(free_with({machine,
                       group,
                       {folder + "b/memory.max", "5000\n"},
                       {folder + "b/memory.current", "6000\n"}}),
            0u);
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
