// What is no regular file is refused before it is opened: a device never ends, a pipe waits.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "core/hash.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

using test::causes_of;
using test::ScratchDirectory;

constexpr uint64_t kLimit = 1000;

class FileKinds : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::mkfifo((scratch_ / "pipe").c_str(), 0600), 0);
    socket_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = scratch_ / "socket";
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    std::copy(path.begin(), path.end(), address.sun_path);
    ASSERT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  void TearDown() override { ::close(socket_); }

  ScratchDirectory scratch_;
  int socket_ = -1;
};

TEST_F(FileKinds, OnlyRegularFilesAreRead) {
  for (const std::string& path : {scratch_ / "pipe", scratch_ / "socket", scratch_.path(),
                                  std::string("/dev/zero"), std::string("/dev/random")}) {
    const std::string refused = "wrong_type at " + path;
    EXPECT_EQ(causes_of([&] { read_file(path); }), refused);
    EXPECT_EQ(causes_of([&] { read_file(path, kLimit); }), refused);
    EXPECT_EQ(causes_of([&] { hash128_hex_of_file(path); }), refused);
    EXPECT_EQ(causes_of([&] { const File file(path, OpenMode::read); }), refused);
    if (path != scratch_ / "pipe") {
      EXPECT_EQ(causes_of([&] { read_file_or_pipe(path, kLimit); }), refused);
    }
  }
  EXPECT_EQ(causes_of([&] { read_file(scratch_ / "absent"); }),
            "not_found at " + scratch_ / "absent");
}

TEST_F(FileKinds, OnlyRegularFilesAreReplaced) {
  for (const std::string& path : {scratch_ / "pipe", scratch_ / "socket", scratch_.path()}) {
    EXPECT_EQ(causes_of([&] { write_file_atomically(path, "new"); }), "wrong_type at " + path);
  }
  EXPECT_EQ(file_system().list(scratch_.path()).size(), 2u) << "nothing is left behind";
  write_file(scratch_ / "file", "old");
  ASSERT_EQ(::symlink("file", (scratch_ / "link").c_str()), 0);
  write_file_atomically(scratch_ / "link", "new");
  EXPECT_EQ(read_file(scratch_ / "file"), "new");
  EXPECT_TRUE(file_system().status_of_link(scratch_ / "link")->link);
}

// A trainer's log.txt may be one.
TEST_F(FileKinds, WritingDoesNotWaitForAReader) {
  for (const OpenMode mode : {OpenMode::write, OpenMode::append}) {
    EXPECT_EQ(causes_of([&] { const File file(scratch_ / "pipe", mode); }),
              "system at " + scratch_ / "pipe");
  }
  for (const char* part : {"one ", "two"}) {
    File file(scratch_ / "log", OpenMode::append);
    file.write(part);
    file.seek(0);
    file.write(part);
  }
  EXPECT_EQ(read_file(scratch_ / "log"), "one one twotwo") << "after both, as before";
}

TEST_F(FileKinds, APipeIsReadToItsEndWhereItMayBe) {
  EXPECT_EQ(read_file_or_pipe(scratch_ / "pipe", kLimit), "") << "nobody writes";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::thread writer([&] {
    for (const std::string_view piece : {"one ", "two"}) {
      ::usleep(20'000);
      EXPECT_EQ(::write(ends[1], piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
    }
    ::close(ends[1]);
  });
  EXPECT_EQ(read_file_or_pipe(concat("/dev/fd/", ends[0]), kLimit), "one two");
  writer.join();
  ::close(ends[0]);
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(::write(ends[1], std::string(kLimit + 1, 'x').data(), kLimit + 1),
            static_cast<ssize_t>(kLimit + 1));
  ::close(ends[1]);
  EXPECT_EQ(causes_of([&] { read_file_or_pipe(concat("/dev/fd/", ends[0]), kLimit); }),
            concat("out_of_range at /dev/fd/", ends[0]));
  ::close(ends[0]);
}

}  // namespace
}  // namespace linnet
