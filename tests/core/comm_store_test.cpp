// The store of files in which ranks meet, and the variables that lead to it.
#include "core/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/environment.h"
#include "tests/core/comm_ranks.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

using std::chrono::milliseconds;
using test::causes_of;
using test::ScratchDirectory;

Deadline in(milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

mode_t mode_of(const std::string& path) {
  struct stat found {};
  EXPECT_EQ(::lstat(path.c_str(), &found), 0) << path;
  return found.st_mode & 0777;
}

TEST(FileStore, KeepsTheFirstValueOfAKey) {
  const ScratchDirectory scratch;
  const auto store = make_file_store(scratch / "store");
  const auto other = make_file_store(scratch / "store");
  EXPECT_EQ(store->get("rank/0 \xff"), std::nullopt);
  EXPECT_TRUE(store->add("rank/0 \xff", std::string("a\0b", 3)));
  EXPECT_FALSE(other->add("rank/0 \xff", "c"));
  EXPECT_EQ(other->get("rank/0 \xff"), std::string("a\0b", 3));
  EXPECT_TRUE(other->add("empty", ""));
  EXPECT_EQ(store->get("empty"), "");
  store->remove("rank/0 \xff");
  store->remove("rank/0 \xff");
  EXPECT_TRUE(other->add("rank/0 \xff", "c"));
  const std::string longest(kMaxTextBytes, 'x');
  EXPECT_TRUE(store->add("long", longest));
  EXPECT_EQ(store->get("long"), longest);
  EXPECT_EQ(causes_of([&] { store->add("longer", longest + "x"); }),
            "out_of_range at " + scratch / "store");
}

TEST(FileStore, WaitsNoLongerThanAllowed) {
  const ScratchDirectory scratch;
  const auto store = make_file_store(scratch / "store");
  EXPECT_EQ(store->wait("key", in(milliseconds(50))), std::nullopt);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    make_file_store(scratch / "store")->add("key", "value");
  });
  EXPECT_EQ(store->wait("key", in(milliseconds(20'000))), "value");
  late.join();
}

TEST(FileStore, IsForItsOwnerAlone) {
  const ScratchDirectory scratch;
  const mode_t umask_before = ::umask(0);
  const auto store = make_file_store(scratch / "store");
  store->add("key", "value");
  ::umask(umask_before);
  EXPECT_EQ(mode_of(scratch / "store"), 0700u);
  EXPECT_EQ(mode_of(scratch / "store/key"), 0600u);
  EXPECT_EQ(file_system().list(scratch / "store"), std::vector<std::string>{"key"});

  ASSERT_EQ(::mkdir((scratch / "open").c_str(), 0700), 0);
  ASSERT_EQ(::chmod((scratch / "open").c_str(), 0750), 0);
  ASSERT_EQ(::symlink((scratch / "store").c_str(), (scratch / "link").c_str()), 0);
  write_file(scratch / "file", "");
  for (const char* name : {"open", "link", "file"}) {
    EXPECT_EQ(causes_of<UsageError>([&] { make_file_store(scratch / name); }),
              "conflict LINNET_STORE at " + scratch / name);
  }
  EXPECT_EQ(causes_of([&] { make_file_store(scratch / "missing/store"); }),
            "not_found at " + scratch / "missing/store");
}

TEST(FileStore, RefusesWhatNobodyAdded) {
  const ScratchDirectory scratch;
  const auto store = make_file_store(scratch / "store");
  write_file(scratch / "store/long", std::string(kMaxTextBytes + 1, 'x'));
  ASSERT_EQ(::mkdir((scratch / "store/folder").c_str(), 0700), 0);
  ASSERT_EQ(::mkfifo((scratch / "store/pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/etc/passwd", (scratch / "store/link").c_str()), 0);
  for (const char* name : {"long", "folder", "pipe"}) {
    EXPECT_EQ(causes_of([&] { store->get(name); }),
              "malformed at " + scratch / (std::string("store/") + name));
  }
  EXPECT_THROW(store->get("link"), Error);
}

class CommEnvironment : public test::CommRanks {
 protected:
  void SetUp() override {
    CommRanks::SetUp();
    clear();
  }
  void TearDown() override { clear(); }
  static void clear() {
    if (test::is_rank()) return;
    for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "LOCAL_WORLD_SIZE",
                             kStoreVariable, kLimitVariable, kInterfaceVariable}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static std::string causes() {
    return causes_of<UsageError>([] { communicator_from_environment(); });
  }
};

TEST_F(CommEnvironment, WithoutVariablesAProcessIsAlone) {
  EXPECT_EQ(communicator_from_environment()->size(), 1);
  set("SLURM_PROCID", "0");  // a batch script
  EXPECT_EQ(communicator_from_environment()->size(), 1);
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  EXPECT_EQ(communicator_from_environment()->name(), "single");
}

TEST_F(CommEnvironment, RefusesVariablesThatDoNotGoTogether) {
  set("RANK", "0");
  EXPECT_EQ(causes(), "missing_key RANK");
  for (const char* size : {"zero", "0", "2x", "-1", "99999999999"}) {
    set("WORLD_SIZE", size);
    EXPECT_EQ(causes(), "out_of_range WORLD_SIZE") << size;
  }
  set("WORLD_SIZE", "2");
  EXPECT_EQ(causes(), "missing_key LINNET_STORE");
  set("RANK", "2");
  EXPECT_EQ(causes(), "out_of_range RANK");
  set("RANK", "1");
  for (const char* store : {"/tmp/store", "file://store", "tcp://localhost:1"}) {
    set(kStoreVariable, store);
    EXPECT_EQ(causes(), "malformed LINNET_STORE") << store;
  }
  set(kLimitVariable, "0");
  EXPECT_EQ(causes(), "out_of_range LINNET_TIME_LIMIT");
}

TEST_F(CommEnvironment, ThoseOfEveryStarterLeadToTheSameJob) {
  int size = 2;
  for (const test::RankNames& names :
       {test::RankNames{}, test::RankNames{"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE=3"},
        test::RankNames{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                        "OMPI_COMM_WORLD_LOCAL_SIZE=4"},
        test::RankNames{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES=1"}}) {
    test::pass_on_ranks(
        size++, [](Communicator& ranks) { EXPECT_EQ(ranks.sum(int64_t{1}), ranks.size()); }, names);
  }
}

TEST_F(CommEnvironment, AnInterfaceThatIsNotThereIsNamed) {
  set("LINNET_INTERFACE", "no-such-interface");
  const auto ends = test::run_ranks(
      2, [](Communicator&) { FAIL() << "connected"; }, 5);
  for (const test::RankEnd& end : ends) {
    EXPECT_NE(end.exit_code, 0);
    EXPECT_THAT(end.output, testing::HasSubstr("no network interface 'no-such-interface'"));
  }
}

TEST_F(CommEnvironment, NothingIsLeftInTheStore) {
  test::pass_on_ranks(3, [](Communicator& ranks) {
    ranks.barrier();
    const std::string folder = std::string(std::getenv(kStoreVariable)).substr(7);
    EXPECT_EQ(file_system().list(folder), std::vector<std::string>{});
    ranks.barrier();  // the first to end removes it
  });
}

}  // namespace
}  // namespace linnet
