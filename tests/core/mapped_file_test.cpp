// Files as memory, and files that take their place whole.
#include "core/mapped_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "core/atomic_file.h"
#include "core/sanitizers.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

using test::ScratchDirectory;

TEST(MappedFile, StaysTheFileThatWasOpened) {
  const ScratchDirectory folder;
  const std::string path = folder / "a";
  write_file(path, "one two");
  const MappedFile file(path);
  write_file_atomically(path, "three");
  EXPECT_EQ(file.bytes(), "one two");
  file_system().remove(path);
  file.require_whole();
  file.release(file.bytes().substr(2, 3));
  EXPECT_EQ(file.bytes(), "one two");
  EXPECT_EQ(test::causes_of([&] { MappedFile{path}; }, folder.path()), "not_found at a");
  EXPECT_EQ(test::causes_of([&] { MappedFile{folder.path()}; }, parent_path(folder.path())),
            concat("wrong_type at ", file_name(folder.path())));
}

TEST(MappedFile, MayBeEmpty) {
  const ScratchDirectory folder;
  write_file(folder / "a", "");
  const MappedFile file(folder / "a");
  file.require_whole();
  EXPECT_EQ(file.bytes(), "");
}

TEST(MappedFile, ACutFileIsNoticed) {
  const ScratchDirectory folder;
  write_file(folder / "a", std::string(10'000, 'x'));
  const MappedFile file(folder / "a");
  file_system().truncate(folder / "a", 9'999);
  EXPECT_EQ(test::causes_of([&] { file.require_whole(); }, folder.path()), "malformed at a");
}

// MiB of files in the memory of this process.
double mapped_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stod(line.substr(8)) / 1024;
  }
  return -1;
}

TEST(MappedFile, WhatIsReleasedLeavesTheProcess) {
  if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "it has memory of its own";
  constexpr size_t kMiB = size_t{1} << 20;
  const ScratchDirectory folder;
  write_file(folder / "a", std::string(32 * kMiB, 'x'));
  const MappedFile file(folder / "a");
  const double before = mapped_mib();
  ASSERT_GT(before, 0);
  size_t sum = 0;
  // In no order: every group of pages is looked at.
  for (size_t i = 0; i < 32 * 16; ++i) {
    const std::string_view part =
        file.bytes().substr(i * 31 % (32 * 16) * kMiB / 16 + 20'000, 30'000);
    for (const char c : part) sum += c == 'x';
    file.release(part);
  }
  EXPECT_EQ(sum, 32 * 16 * 30'000u);
  EXPECT_LT(mapped_mib() - before, 2);
}

TEST(AtomicFile, LeavesNothingWithoutItsEnd) {
  const ScratchDirectory folder;
  const std::string path = folder / "a";
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
    file.sync();
    EXPECT_EQ(file_system().list(folder.path()).size(), 2u);
  }
  EXPECT_THAT(file_system().list(folder.path()), testing::ElementsAre("a"));
  EXPECT_EQ(read_file(path), "old");
  AtomicFile file(path);
  file.write("new");
  file.write("er");
  EXPECT_EQ(read_file(path), "old");
  file.commit();
  EXPECT_EQ(read_file(path), "newer");
  EXPECT_THAT(file_system().list(folder.path()), testing::ElementsAre("a"));
}

}  // namespace
}  // namespace linnet
