// Archives as data: what is unpacked, what is refused, damage, disks that refuse, several
// processes.
#include "data/archive.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "core/interrupt.h"
#include "core/sanitizers.h"
#include "data/byte_source.h"
#include "data/file_list.h"
#include "tests/data/archive_files.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::Member;
using test::message_of;
using test::pack;
using test::Packing;
using test::peak_mib;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr Packing kPackings[] = {Packing::tar, Packing::tar_gz, Packing::tar_xz, Packing::zip};

class ArchiveTest : public testing::Test {
 protected:
  std::string write(Packing packing, const std::vector<Member>& members) const {
    return folder.write("a", pack(packing, members));
  }
  // A damaged archive. Not over the one before: file systems write out what replaces a file.
  std::string write_damaged(const std::string& bytes) const {
    remove_all(folder / "damaged");
    return folder.write("damaged", bytes);
  }
  // What a call that fails leaves in the cache.
  std::vector<std::string> left() const {
    return exists(cache) ? file_system().list(cache) : std::vector<std::string>{};
  }
  std::string refused(const std::string& path, const ArchiveLimits& limits = {}) const {
    const std::string message = message_of([&] { unpacked(path, cache, limits); });
    EXPECT_THAT(message, HasSubstr(path));
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    EXPECT_THAT(left(), IsEmpty()) << message;
    return message;
  }

  const test::FilesInMemory fast;
  test::TemporaryFolder folder;
  const std::string cache = folder / "cache";
};

TEST_F(ArchiveTest, EveryKindIsRecognisedByItsContentsAndUnpackedOnce) {
  for (const Packing packing : kPackings) {
    const std::string path = write(packing, {{"./top/", "", AE_IFDIR},
                                             {"./top/a.txt", "one"},
                                             {"top/b/c.txt", std::string(300'000, 'x')},
                                             {"top/h\xc3\xa4user.txt", ""}});
    const std::string where = unpacked(path, cache);
    ASSERT_THAT(where, StartsWith(join_path(cache, "archive-")));
    EXPECT_EQ(file_name(where), "top");
    EXPECT_THAT(files_below(where), ElementsAre("a.txt", "b/c.txt", "h\xc3\xa4user.txt"));
    EXPECT_EQ(read_file(where + "/a.txt"), "one");
    EXPECT_EQ(read_file(where + "/b/c.txt"), std::string(300'000, 'x'));
    // A second call finds it; after the loss of a file it is unpacked again.
    write_file(where + "/a.txt", "two");
    EXPECT_EQ(unpacked(path, cache), where);
    EXPECT_EQ(read_file(where + "/a.txt"), "two");
    remove_all(where + "/a.txt");
    EXPECT_EQ(unpacked(path, cache), where);
    EXPECT_EQ(read_file(where + "/a.txt"), "one");
    EXPECT_EQ(left().size(), 1u);
    remove_all(cache);
  }
}

TEST_F(ArchiveTest, OtherPathsAreReturnedAsTheyAre) {
  const std::string text = folder.write("text", "PK is no archive");
  for (const std::string& path : {text, folder.path(), folder / "missing"})
    EXPECT_EQ(unpacked(path, cache), path);
  // A compressed file that is no tar is not unpacked; open_bytes() reads it.
  const std::string whole = pack(Packing::tar, {{"a", "x"}});
  EXPECT_EQ(compression_of(pack(Packing::tar_gz, {{"a", "x"}})), Compression::gzip);
  EXPECT_EQ(compression_of(pack(Packing::tar_xz, {{"a", "x"}})), Compression::xz);
  EXPECT_EQ(compression_of(whole), Compression::none);
  for (const Packing packing : {Packing::tar, Packing::tar_gz, Packing::tar_xz}) {
    const std::string path = write(packing, {{"a", "x"}});
    EXPECT_EQ(read_decompressed(path, whole.size()), whole);
    EXPECT_EQ(causes_of([&] { read_decompressed(path, whole.size() - 1); }, folder.path()),
              "out_of_range at a");
  }
  for (const char* name : {"a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "a.txz", "a.zip"})
    EXPECT_THAT(refused(folder.write(name, "text")), HasSubstr("is named like an archive"));
  EXPECT_EQ(causes_of<UsageError>([&] {
              unpacked(write(Packing::tar, {{"a", "x"}}), "");
            }),
            "missing_key LINNET_CACHE");
}

TEST_F(ArchiveTest, AFolderThatHoldsOneAndNothingElseIsThatArchive) {
  const std::string bytes = pack(Packing::tar_gz, {{"top/a.txt", "one"}, {"top/b.txt", "two"}});
  folder.write("got/a", bytes);
  const std::string where = unpacked(folder / "got", cache);
  EXPECT_THAT(files_below(where), ElementsAre("a.txt", "b.txt"));
  EXPECT_EQ(unpacked(folder / "got/a", cache), where);
  folder.write("got/notes.txt", "Not alone.");
  EXPECT_EQ(unpacked(folder / "got", cache), folder / "got");
  folder.write("text/a.txt", "A text alone.");
  EXPECT_EQ(unpacked(folder / "text", cache), folder / "text");
}

TEST_F(ArchiveTest, TheOneTopFolderIsReturnedUnlessItIsASplit) {
  const auto top = [&](const std::vector<Member>& members) {
    const std::string where = unpacked(write(Packing::tar, members), cache);
    return file_name(where).starts_with("archive-") ? "" : file_name(where);
  };
  EXPECT_EQ(top({{"data/train/a", ""}, {"data/test/b", ""}}), "data");
  EXPECT_EQ(top({{"train/a", ""}, {"test/b", ""}}), "");
  EXPECT_EQ(top({{"train/a", ""}, {"train/b", ""}}), "");
  EXPECT_EQ(top({{"data/a", ""}, {"b", ""}}), "");
  EXPECT_EQ(top({{"a", ""}}), "");
}

TEST_F(ArchiveTest, MembersThatAreNoPlainFilesInsideAreRefused) {
  for (const Packing packing : kPackings) {
    const auto message = [&](const Member& member) {
      return refused(write(packing, {{"first", "1"}, member}));
    };
    EXPECT_THAT(message({"../out", "x"}), HasSubstr("'..' in its name"));
    EXPECT_THAT(message({"a/../../out", "x"}), HasSubstr("'..' in its name"));
    EXPECT_THAT(message({"..", "", AE_IFDIR}), HasSubstr("'..' in its name"));
    EXPECT_THAT(message({"/tmp/out", "x"}), HasSubstr("absolute name"));
    EXPECT_THAT(message({"link", "", AE_IFLNK}), HasSubstr("'link' is a symbolic link"));
    EXPECT_THAT(message({"first", "x"}), HasSubstr("two members have the name 'first'"));
    EXPECT_THAT(message({"./first", "x"}), HasSubstr("two members have the name './first'"));
    EXPECT_THAT(message({"first/a", "x"}), HasSubstr("below a name that is a file's"));
    EXPECT_THAT(message({std::string(1025, 'n'), "x"}), HasSubstr("1025 bytes, more than 1024"));
    if (packing == Packing::zip) continue;
    EXPECT_THAT(message({"hard", "", AE_IFREG, "first"}), HasSubstr("'hard' is a hard link"));
    EXPECT_THAT(message({"pipe", "", AE_IFIFO}), HasSubstr("'pipe' is a device, a pipe"));
    EXPECT_THAT(message({"device", "", AE_IFCHR}), HasSubstr("'device' is a device"));
  }
  EXPECT_THAT(refused(write(Packing::encrypted_zip, {{"a", "x"}})), HasSubstr("'a' is encrypted"));
  EXPECT_THAT(refused(write(Packing::tar, {{"only", "", AE_IFDIR}})), HasSubstr("holds no files"));
  EXPECT_THAT(refused(write(Packing::tar, {{".linnet-archive", "x"}})), HasSubstr("linnet uses"));
}

TEST_F(ArchiveTest, LimitsHoldForMembersBytesAndTheRatio) {
  const std::vector<Member> members = {{"a", std::string(5000, 'x')},
                                       {"b", std::string(5000, 'x')}};
  for (const Packing packing : kPackings) {
    const std::string path = write(packing, members);
    EXPECT_THAT(refused(path, {.members = 1}), HasSubstr("more than 1 members"));
    EXPECT_THAT(refused(path, {.bytes = 9999}), HasSubstr("'b'"));
    EXPECT_THAT(refused(path, {.ratio = 0, .free_bytes = 9999}), HasSubstr("grows to more than 0"));
    unpacked(path, cache, {.bytes = 10'000, .members = 2, .ratio = 0, .free_bytes = 10'000});
    remove_all(cache);
  }
  // 65 MiB of zeros in some 70 KB.
  const std::vector<Member> bomb = {{"zeros", std::string(size_t{65} << 20, '\0')}};
  for (const Packing packing : {Packing::tar_gz, Packing::tar_xz, Packing::zip})
    EXPECT_THAT(refused(write(packing, bomb)), HasSubstr("250 times its size"));
}

TEST_F(ArchiveTest, WhatDoesNotFitOnTheDiskIsRefused) {
  class SmallDisk final : public FileSystem {
   public:
    SmallDisk() { replace_file_system(this); }
    ~SmallDisk() override { replace_file_system(nullptr); }
    uint64_t free_bytes(const std::string&) override { return 1000; }
  };
  const std::string path = write(Packing::tar, {{"a", "x"}, {"b", std::string(2000, 'x')}});
  const SmallDisk small;
  EXPECT_THAT(refused(path), HasSubstr("set LINNET_CACHE to a folder with more room"));
}

TEST_F(ArchiveTest, EveryTruncationIsRefused) {
  const std::vector<Member> members = {{"a", "one"}, {"b", std::string(200, 'b')}, {"c", ""}};
  for (const Packing packing : kPackings) {
    const std::string whole = pack(packing, members);
    // From the length on from which the beginning tells an archive; two empty blocks end a tar.
    const size_t needed = whole.size() - (packing == Packing::tar ? 512 : 0);
    for (size_t length = packing == Packing::tar ? 512 : 6; length < needed;
         length += packing == Packing::tar ? 5 : 1) {
      const std::string path = write_damaged(whole.substr(0, length));
      EXPECT_EQ(causes_of([&] { unpacked(path, cache); }, folder.path()), "malformed at damaged")
          << static_cast<int>(packing) << " " << length;
    }
    EXPECT_THAT(left(), IsEmpty());
  }
}

TEST_F(ArchiveTest, AFlippedByteIsReadOrRefused) {
  const test::FailingFileSystem unsynced(-1, test::Failure::no_space);  // fails at no call
  const double before_mib = peak_mib();
  const std::vector<Member> members = {
      {"a", std::string(400, 'a')}, {"b", std::string(400, 'b')}, {"c", std::string(400, 'c')}};
  for (const Packing packing : kPackings) {
    const std::string whole = pack(packing, members);
    ASSERT_TRUE(packing != Packing::tar || whole.size() == 4096) << whole.size();
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
      const std::string path = write_damaged(damaged);
      const auto start = std::chrono::steady_clock::now();
      try {
        const std::string where = unpacked(path, cache);
        if (where == path) continue;  // no archive any more
        for (const std::string& name : files_below(where)) {
          const std::string text = read_file(join_path(where, name));
          // A tar has a checksum for its headers alone.
          const bool intact = text == members[0].contents || text == members[1].contents ||
                              text == members[2].contents;
          EXPECT_TRUE(intact || packing == Packing::tar) << static_cast<int>(packing) << " " << at;
        }
        remove_all(cache);
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(path));
        EXPECT_THAT(left(), IsEmpty());
      }
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      EXPECT_LT(seconds.count(), 1) << at;
    }
  }
  // AddressSanitizer keeps what was freed.
  EXPECT_LT(kAddressSanitizer ? 0 : peak_mib() - before_mib, 256);
}

TEST_F(ArchiveTest, AFailingDiskLeavesNothingBehind) {
  const std::string path = write(Packing::tar_gz, {{"top/a", "one"}, {"top/b/c", "two"}});
  int64_t calls = 0;
  {
    const test::FailingFileSystem counting(-1, test::Failure::no_space);
    unpacked(path, cache);
    calls = counting.calls();
  }
  remove_all(cache);
  ASSERT_GT(calls, 10);
  for (const auto failure : {test::Failure::no_space, test::Failure::input_output}) {
    for (int64_t at = 0; at < calls; ++at) {
      {
        const test::FailingFileSystem failing(at, failure);
        // Closing a file that was only read may fail: all was there.
        try {
          EXPECT_EQ(read_file(unpacked(path, cache) + "/b/c"), "two") << at;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::system) << error.what();
        }
      }
      // The last call, which makes the finished name durable, fails too late to take it back.
      for (const std::string& name : left()) EXPECT_EQ(name.find('.'), name.npos) << at;
      const std::string where = unpacked(path, cache);
      EXPECT_EQ(read_file(where + "/b/c"), "two");
      remove_all(cache);
    }
  }
}

TEST_F(ArchiveTest, ProcessesMayUnpackOneArchiveAtOnce) {
  std::vector<Member> members;
  for (int i = 0; i < 200; ++i) members.push_back({concat("top/", i), concat(i)});
  const std::string path = write(Packing::tar_xz, members);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      int status = 1;
      try {
        status = files_below(unpacked(path, cache)).size() == members.size() ? 0 : 2;
      } catch (...) {
      }
      _exit(status);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(left().size(), 1u);
}

TEST_F(ArchiveTest, ARequestToStopGivesUp) {
  const std::string path = write(Packing::tar, {{"a", "one"}, {"b", "two"}});
  const HoldStop hold;
  const Interruptible part;
  request_stop(SIGTERM);
  EXPECT_THROW(unpacked(path, cache), Interrupted);
  clear_stop_signal();
  EXPECT_THAT(left(), IsEmpty());
}

}  // namespace
}  // namespace linnet
