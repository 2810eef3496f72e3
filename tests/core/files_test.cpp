// The seam for file operations: composed operations, error messages, injected failures.
#include "core/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/free_memory.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

using test::FailingFileSystem;
using test::Failure;
using test::ScratchDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

// The message of the Error that `body` throws; empty when it throws none.
template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Files, NamesThatNoFileCanHaveAreAbsent) {
  const test::ScratchDirectory scratch;
  EXPECT_FALSE(exists(std::string(100'000, 'a')));
  EXPECT_FALSE(is_directory(scratch / std::string(300, 'a')));
  std::filesystem::create_symlink("loop", scratch / "loop");
  EXPECT_FALSE(exists(scratch / "loop"));
  remove_all(scratch / "loop");
  EXPECT_TRUE(file_system().list(scratch.path()).empty());
}

TEST(Files, ReadBackWhatWasWritten) {
  const ScratchDirectory scratch;
  const std::string bytes("a\0b\n", 4);
  write_file(scratch / "x", bytes);
  EXPECT_EQ(read_file(scratch / "x"), bytes);
  EXPECT_EQ(file_bytes(scratch / "x"), 4u);
  write_file(scratch / "x", "");
  EXPECT_EQ(read_file(scratch / "x"), "");
}

TEST(Files, ReadsFilesThatReportNoSize) {
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("Pid:"));
}

TEST(Files, ErrorsNameThePathAndTheReason) {
  const ScratchDirectory scratch;
  EXPECT_EQ(error_of([&] { read_file(scratch / "absent"); }),
            "cannot open " + scratch / "absent" + ": No such file or directory");
  write_file(scratch / "x", "12345");
  EXPECT_THAT(error_of([&] { read_file(scratch / "x", 4); }), HasSubstr("limit of 4"));
  EXPECT_EQ(read_file(scratch / "x", 5), "12345");
  EXPECT_THAT(error_of([&] { write_file(scratch / "x/y", ""); }), HasSubstr("Not a directory"));
  EXPECT_THAT(error_of([&] { create_directories(scratch / "x/y"); }), HasSubstr("x"));
  EXPECT_THAT(error_of([&] { file_system().list(scratch / "none"); }), HasSubstr("none"));
}

// Of holes alone: such files take no room. Memory that they need is not asked for: the system would
// promise it, and end the process once it is used.
TEST(Files, MoreThanIsFreeIsNotRead) {
  std::string folder = "/dev/shm/linnet-XXXXXX";  // a file system that has such sizes
  if (::mkdtemp(folder.data()) == nullptr) GTEST_SKIP() << "no /dev/shm";
  const std::string path = join_path(folder, "holes");
  write_file(path, "");
  const auto free = static_cast<double>(free_memory(Device{}));
  for (const double bytes : {1.25 * free, 0x7p60}) {
    if (::truncate(path.c_str(), static_cast<off_t>(bytes)) != 0) continue;
    EXPECT_THAT(error_of([&] { read_file(path); }), HasSubstr("bytes do not fit into memory"));
  }
  remove_all(folder);
}

TEST(Files, AppendSeekAndTruncate) {
  const ScratchDirectory scratch;
  for (const char* piece : {"one ", "two"}) {
    File file(scratch / "log", OpenMode::append);
    file.write(piece);
    file.close();
  }
  EXPECT_EQ(read_file(scratch / "log"), "one two");
  file_system().truncate(scratch / "log", 5);
  File file(scratch / "log", OpenMode::read);
  file.seek(4);
  std::string rest(10, '\0');
  EXPECT_EQ(file.read(rest), 1u);
  EXPECT_EQ(rest[0], 't');
}

TEST(Files, DirectoriesAreMadeListedAndRemoved) {
  const ScratchDirectory scratch;
  create_directories(scratch / "a/b/c");
  create_directories(scratch / "a/b/c/");
  write_file(scratch / "a/z", "");
  EXPECT_THAT(file_system().list(scratch / "a"), ElementsAre("b", "z"));
  EXPECT_TRUE(is_directory(scratch / "a/b/c"));
  EXPECT_FALSE(is_directory(scratch / "a/z"));
  // A link is removed, what it points to stays.
  write_file(scratch / "kept", "x");
  ASSERT_EQ(::symlink(scratch.path().c_str(), (scratch / "a/link").c_str()), 0);
  remove_all(scratch / "a");
  EXPECT_FALSE(exists(scratch / "a"));
  EXPECT_TRUE(exists(scratch / "kept"));
  remove_all(scratch / "a");
}

TEST(Files, Paths) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a", "/b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(parent_path("a/b/c.txt"), "a/b");
  EXPECT_EQ(parent_path("a/b/"), "a");
  EXPECT_EQ(parent_path("c.txt"), ".");
  EXPECT_EQ(parent_path("/c.txt"), "/");
  EXPECT_EQ(file_name("a/b/c.txt"), "c.txt");
  EXPECT_EQ(file_name("a/b/"), "b");
}

TEST(Files, FreeSpaceIsPositive) {
  const ScratchDirectory scratch;
  EXPECT_GT(file_system().free_bytes(scratch.path()), 0u);
}

TEST(Files, AtomicWriteKeepsOneOfTheTwoContentsWhateverFails) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "x";
  int64_t calls = 0;
  {
    FailingFileSystem counting(-1, Failure::no_space);
    write_file_atomically(path, "old contents");
    calls = counting.calls();
  }
  ASSERT_EQ(calls, 6);  // open, write, sync, close, rename, sync of the directory
  for (const Failure failure : {Failure::no_space, Failure::input_output, Failure::short_write}) {
    for (int64_t n = 0; n < calls; ++n) {
      write_file(path, "old contents");
      std::string error;
      {
        FailingFileSystem failing(n, failure);
        error = error_of([&] { write_file_atomically(path, "new"); });
        EXPECT_TRUE(failing.failed());
      }
      EXPECT_THAT(error, HasSubstr(scratch.path())) << n;
      EXPECT_THAT(error, HasSubstr(failure == Failure::input_output ? "Input/output error"
                                                                    : "No space left on device"));
      EXPECT_EQ(read_file(path), n < 5 ? "old contents" : "new") << n;
      EXPECT_THAT(file_system().list(scratch.path()), ElementsAre("x")) << n;
    }
  }
}

TEST(Files, ShortWritesAreContinued) {
  // Takes at most three bytes at a time.
  class Trickle final : public FileSystem {
   public:
    size_t write_some(int descriptor, std::string_view bytes, const std::string& path) override {
      return FileSystem::write_some(descriptor, bytes.substr(0, 3), path);
    }
    size_t read_some(int descriptor, std::span<char> into, const std::string& path) override {
      return FileSystem::read_some(descriptor, into.first(std::min<size_t>(into.size(), 3)), path);
    }
  };
  const ScratchDirectory scratch;
  Trickle trickle;
  replace_file_system(&trickle);
  write_file(scratch / "x", "0123456789");
  const std::string bytes = read_file(scratch / "x");
  replace_file_system(nullptr);
  EXPECT_EQ(bytes, "0123456789");
}

}  // namespace
}  // namespace linnet
