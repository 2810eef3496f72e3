// A test that runs on several ranks: this program is started once more for each, for the same test,
// which does the work of a rank there.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/child_process.h"
#include "core/comm/environment.h"
#include "core/comm/transport.h"
#include "core/sanitizers.h"
#include "tests/file_failures.h"

namespace linnet::test {

struct RankEnd {
  int exit_code;
  std::string output;
};

struct RankNames {
  std::string rank = "RANK", size = "WORLD_SIZE";
  // What leads them to each other; empty: a store of files.
  std::vector<std::string> meeting = {};
  // A variable that has another value on every rank.
  std::string different = {};
  // Whether rank r exchanges tensors of cuda:r by NCCL.
  bool own_device = false;
};

// Of tests with several ranks.
class CommRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
    if (kThreadSanitizer) GTEST_SKIP() << "Gloo's threads are not instrumented";
  }
};

// The program that runs this test for all ranks, or one of them.
inline bool is_rank() {
  return std::getenv("LINNET_TEST_RANK") != nullptr;
}

// In a rank: connects (with LINNET_TIME_LIMIT=`limit_s`), does `work` and leaves the test, if the
// rank belongs to a run of this size. In the first process: starts `started` ranks (default: all)
// and returns how they ended.
inline std::vector<RankEnd> run_ranks(int size, const std::function<void(Communicator&)>& work,
                                      int limit_s = 60, int started = -1,
                                      const RankNames& names = {}) {
  if (is_rank()) {
    const char* asked = std::getenv(names.size.c_str());
    if (asked == nullptr || asked != std::to_string(size)) return {};
    const Device device = names.own_device
                              ? Device{DeviceKind::cuda, std::atoi(std::getenv(names.rank.c_str()))}
                              : Device{};
    const auto communicator = communicator_from_environment(device);
    EXPECT_EQ(communicator->size(), size);
    work(*communicator);
    return {};
  }
  const ScratchDirectory scratch;
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int rank = 0; rank < (started < 0 ? size : started); ++rank) {
    ChildSettings settings;
    settings.variables = {concat(names.rank, "=", rank),
                          concat(names.size, "=", size),
                          concat("TMPDIR=", scratch.path()),
                          concat(kLimitVariable, "=", limit_s),
                          "LINNET_TEST_RANK=1",
                          "OMP_NUM_THREADS=1",
                          "OMP_WAIT_POLICY=passive"};
    if (!names.different.empty()) settings.variables.push_back(concat(names.different, "=", rank));
    if (names.meeting.empty()) {
      settings.variables.push_back(concat(kStoreVariable, "=file://", scratch / "store"));
    }
    settings.variables.insert(settings.variables.end(), names.meeting.begin(), names.meeting.end());
    ranks.push_back(std::make_unique<ChildProcess>(
        std::vector<std::string>{
            concat("--gtest_filter=", test.test_suite_name(), ".", test.name()), "--gtest_brief=1"},
        settings));
  }
  std::vector<RankEnd> ends;
  for (const auto& rank : ranks) {
    RankEnd& end = ends.emplace_back();
    while (rank->running()) {
      pollfd wake{rank->descriptor(), POLLIN, 0};
      ::poll(&wake, 1, 20);
      for (const std::string& line : rank->read_lines()) end.output += line + "\n";
    }
    end.exit_code = rank->exit_code();
  }
  return ends;
}

// The same, and all ranks must pass.
inline void pass_on_ranks(int size, const std::function<void(Communicator&)>& work,
                          const RankNames& names = {}) {
  int rank = 0;
  for (const RankEnd& end : run_ranks(size, work, 60, -1, names)) {
    EXPECT_EQ(end.exit_code, 0) << "rank " << rank << " of " << size << ":\n" << end.output;
    ++rank;
  }
}

}  // namespace linnet::test
