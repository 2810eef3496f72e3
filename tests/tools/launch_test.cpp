// linnet launch and linnet bench allreduce: ranks that work together, fail, stand still and are
// stopped.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "core/comm/environment.h"
#include "core/comm/transport.h"
#include "core/json.h"
#include "core/sanitizers.h"
#include "core/threads.h"
#include "tests/core/held_port.h"
#include "tests/tools/children.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::children_of;
using test::Outcome;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

class Launch : public test::Cli {
 protected:
  void SetUp() override {
    if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
    if (kThreadSanitizer) GTEST_SKIP() << "Gloo's threads are not instrumented";
    create_directories(folder_ / "temporary");
    ::setenv("TMPDIR", (folder_ / "temporary").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("TMPDIR"); }

  // Starts ranks that are busy for as long as they are left alone, and waits until they are.
  pid_t start_busy(const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"launch"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.emplace_back("--");
    arguments.insert(arguments.end(), kBusy.begin(), kBusy.end());
    const pid_t launch = start(arguments);
    wait_for_output(calls_);
    return launch;
  }
  // `call`: calls_ after the process was started.
  void wait_for_output(int call) {
    const std::string out = folder_ / concat("stdout", call);
    const Clock::time_point give_up = Clock::now() + seconds(120);
    while (Clock::now() < give_up && (!exists(out) || read_file(out).empty())) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  const std::vector<std::string> kBusy = {"bench",    "allreduce", "--sizes",
                                          "4,400000", "--runs",    "300000"};

  static std::string environment_of(pid_t process) {
    std::ifstream file(concat("/proc/", process, "/environ"));
    std::string text((std::istreambuf_iterator<char>(file)), {});
    std::replace(text.begin(), text.end(), '\0', '\n');
    return "\n" + text;
  }
  // The addresses where the process listens or is connected, in the digits of /proc/net/tcp.
  static std::set<std::string> addresses_of(pid_t process) {
    std::set<std::string> sockets, addresses;
    for (const auto& file : std::filesystem::directory_iterator(concat("/proc/", process, "/fd"))) {
      std::error_code gone;
      sockets.insert(std::filesystem::read_symlink(file, gone).string());
    }
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
      std::ifstream lines(table);
      for (std::string line; std::getline(lines, line);) {
        std::istringstream fields(line);
        std::vector<std::string> words;
        for (std::string word; fields >> word;) words.push_back(word);
        if (words.size() > 9 && sockets.contains("socket:[" + words[9] + "]")) {
          addresses.insert(words[1].substr(0, words[1].find(':')));
        }
      }
    }
    return addresses;
  }
  // Within a moment where nobody waits for them; one that has ended and is not collected is gone.
  void expect_gone(const std::vector<pid_t>& processes) {
    const Clock::time_point give_up = Clock::now() + seconds(20);
    for (const pid_t process : processes) {
      const auto lives = [&] {
        std::ifstream file(concat("/proc/", process, "/stat"));
        const std::string text((std::istreambuf_iterator<char>(file)), {});
        return !text.empty() && text.find(") Z ") == std::string::npos;
      };
      while (lives() && Clock::now() < give_up) std::this_thread::sleep_for(milliseconds(5));
      EXPECT_FALSE(lives()) << process;
    }
    EXPECT_EQ(file_system().list(folder_ / "temporary"), std::vector<std::string>{});
  }
};

TEST_F(Launch, RanksSumTogether) {
  const Outcome outcome =
      linnet({"launch", "--procs", "2", "--threads-per-proc", "1", "--", "bench", "allreduce",
              "--sizes", "4,1001", "--runs", "3", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const JsonValue result = parse_json(outcome.out, "stdout");
  EXPECT_EQ(result.at("processes").integer(), 2);
  EXPECT_EQ(result.at("communicator").text(), "gloo");
  const auto& sizes = result.at("results").elements();
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[1].at("bytes").integer(), 1000);
  EXPECT_GT(sizes[1].at("median_ms").number(), 0);
  expect_gone({});
}

TEST_F(Launch, ARankThatFailsEndsAllWithItsExitCode) {
  const Outcome outcome =
      linnet({"launch", "--procs", "3", "--", "bench", "allreduce", "--dtype", "i9"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("] error: "));
  EXPECT_THAT(outcome.err, HasSubstr(" of 3 ended with exit code 2"));
  expect_gone({});
}

TEST_F(Launch, AKilledRankEndsAll) {
  const pid_t launch = start_busy({"--procs", "3", "--threads-per-proc", "5"});
  const std::vector<pid_t> ranks = children_of(launch);
  ASSERT_EQ(ranks.size(), 3u);
  for (size_t rank = 0; rank < 3; ++rank) {
    const std::string environment = environment_of(ranks[rank]);
    for (const std::string& variable :
         {concat("RANK=", rank), concat("LOCAL_RANK=", rank), std::string("WORLD_SIZE=3"),
          std::string("LOCAL_WORLD_SIZE=3"), std::string("OMP_NUM_THREADS=5")}) {
      EXPECT_THAT(environment, HasSubstr("\n" + variable + "\n"));
    }
  }
  const Clock::time_point start = Clock::now();
  ::kill(ranks[1], SIGKILL);
  const Outcome outcome = wait(launch);
  EXPECT_LT(Clock::now() - start, seconds(30));
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("error: rank 1 of 3 was ended by signal 9"));
  expect_gone(ranks);
}

TEST_F(Launch, ARankThatStandsStillIsNamedAndEnded) {
  const pid_t launch = start_busy({"--procs", "2", "--time-limit", "6", "--grace", "1"});
  const std::vector<pid_t> ranks = children_of(launch);
  ASSERT_EQ(ranks.size(), 2u);
  const Clock::time_point start = Clock::now();
  ::kill(ranks[1], SIGSTOP);
  const Outcome outcome = wait(launch);
  EXPECT_LT(Clock::now() - start, seconds(30));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[0] error: rank 0 of 2, "));
  EXPECT_THAT(outcome.err, HasSubstr(": rank 1 did not take part within 6 s"));
  EXPECT_THAT(outcome.err, HasSubstr("error: rank 0 of 2 ended with exit code 1"));
  expect_gone(ranks);
}

TEST_F(Launch, DividesThreadsAndPassesASignalOn) {
  const pid_t launch = start_busy({"--procs", "2"});
  const std::vector<pid_t> ranks = children_of(launch);
  ASSERT_EQ(ranks.size(), 2u);
  const std::string threads = concat("\nOMP_NUM_THREADS=", std::max(1, thread_count() / 2), "\n");
  for (const pid_t rank : ranks) EXPECT_THAT(environment_of(rank), HasSubstr(threads));
  ::kill(launch, SIGTERM);
  const Outcome outcome = wait(launch);
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("stopped by signal 15"));
  expect_gone(ranks);
}

// A rank that stands still would hold up the end that the first signal asks for.
TEST_F(Launch, ASecondSignalEndsAllAtOnce) {
  const pid_t launch = start_busy({"--procs", "2"});
  const std::vector<pid_t> ranks = children_of(launch);
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGSTOP);
  ::kill(launch, SIGTERM);
  std::this_thread::sleep_for(milliseconds(500));
  const Clock::time_point start = Clock::now();
  ::kill(launch, SIGTERM);
  const Outcome outcome = wait(launch);
  EXPECT_LT(Clock::now() - start, seconds(10));
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
  expect_gone(ranks);
}

TEST_F(Launch, RanksEndWithTheProcessThatStartedThem) {
  const pid_t launch = start_busy({"--procs", "2"});
  const std::vector<pid_t> ranks = children_of(launch);
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[0], SIGSTOP);
  ::kill(launch, SIGKILL);
  wait(launch);
  remove_all(folder_ / "temporary");  // nobody is left to do it
  create_directories(folder_ / "temporary");
  expect_gone(ranks);
}

TEST_F(Launch, BadInputEndsInOneSentenceEach) {
  struct Case {
    std::vector<std::string> variables;
    int code;
    const char* part;
  };
  const test::HeldPort held;
  const std::string address = "MASTER_ADDR=127.0.0.1";
  for (const Case& one : {
           Case{{"RANK=0"}, 2, "of the environment variables RANK and WORLD_SIZE one is set"},
           Case{{"RANK=0", "WORLD_SIZE=2"}, 2, "nothing says where they meet"},
           Case{
               {"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2"}, 1, "no sign of rank 1 within 1 s"},
           // One port alone: behind a range of them another test may be listening.
           Case{{"RANK=1", "WORLD_SIZE=2",
                 concat("LINNET_STORE=tcp://127.0.0.1:", test::free_port())},
                1,
                "rank 1: no sign of rank 0 at 127.0.0.1, port "},
           Case{{"RANK=0", "WORLD_SIZE=2", concat("LINNET_STORE=tcp://127.0.0.1:", held.port)},
                1,
                " of 127.0.0.1 is in use or not allowed: name a free one"},
           Case{{"RANK=0", "WORLD_SIZE=2", "LINNET_STORE=tcp://203.0.113.7:4000"},
                2,
                "rank 0 is not on the machine with the address 203.0.113.7"},
           Case{{"RANK=0", "WORLD_SIZE=2", address, concat("MASTER_PORT=", test::free_port()),
                 "LINNET_TOKEN=" + std::string(kMaxTextBytes + 1, 'x')},
                2,
                "the job's token must have at most 65536 bytes"},
       }) {
    for (const std::string& variable : one.variables) {
      const size_t end = variable.find('=');
      ::setenv(variable.substr(0, end).c_str(), variable.c_str() + end + 1, 1);
    }
    ::setenv(kLimitVariable, "1", 1);
    const Clock::time_point start = Clock::now();
    expect_error({"bench", "allreduce"}, one.code, one.part);
    EXPECT_LT(Clock::now() - start, seconds(10));
    for (const std::string& variable : one.variables) {
      ::unsetenv(variable.substr(0, variable.find('=')).c_str());
    }
    ::unsetenv(kLimitVariable);
    remove_all(folder_ / "temporary");  // what the others of the job would look for
    create_directories(folder_ / "temporary");
  }
  ::setenv(kInterfaceVariable, "no-such-interface", 1);
  const Outcome outcome = linnet({"launch", "--procs", "2", "--", "bench", "allreduce"});
  ::unsetenv(kInterfaceVariable);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("] error: this machine has no network interface "
                                     "'no-such-interface'; it has lo 127.0.0.1"));
  expect_gone({});
}

TEST_F(Launch, RefusesWhatKnowsNothingOfRanks) {
  expect_error(
      {"launch", "--procs", "2", "--", "sweep", "tiny.yaml"}, 2,
      "'sweep' is none of the commands that run on several processes: 'train', 'evaluate', "
      "'bench train', 'bench allreduce'");
  expect_error({"launch", "--procs", "2", "--", "bench", "gemm"}, 2, "'bench gemm' is none of");
  expect_error({"launch", "--procs", "0", "--", "bench", "allreduce"}, 2, "must be 1 to 256");
  expect_error({"launch", "--procs", "2"}, 2, "the command to run is missing: it comes after --");
  expect_error({"launch", "--procs", "2", "bench", "allreduce", "--json"}, 2,
               "unknown option '--json' of launch (what it runs, with its own options, comes after "
               "--): expected one of --help, --procs");
  expect_error({"launch", "--proc", "2", "--", "bench", "allreduce"}, 2,
               "unknown option '--proc': did you mean '--procs'?");
}

// As torchrun would start them, without and with its variables of an address.
TEST_F(Launch, RanksOfAnotherStarterMeet) {
  for (const bool by_address : {false, true}) {
    if (by_address) {
      ::setenv("MASTER_ADDR", "localhost", 1);
      ::setenv("MASTER_PORT", std::to_string(test::free_port()).c_str(), 1);
    }
    const auto start_rank = [&](const char* rank) {
      ::setenv("RANK", rank, 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("LOCAL_WORLD_SIZE", "2", 1);
      const pid_t process = start({"bench", "allreduce", "--sizes", "64", "--runs", "2"});
      for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}) ::unsetenv(name);
      return process;
    };
    const pid_t first = start_rank("0");
    const int first_call = calls_;
    const Outcome second = wait(start_rank("1"));
    const Outcome outcome = wait(first, first_call);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("2 processes, gloo"));
    EXPECT_EQ(second.code, 0) << second.err;
    EXPECT_EQ(second.out, "");
    expect_gone({});
  }
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
}

// Whatever MASTER_ADDR is, as their starter says that all ranks are on this machine.
TEST_F(Launch, RanksOfOneMachineMeetOnTheLoopbackAddressAlone) {
  const std::string port = std::to_string(test::free_port());
  std::vector<pid_t> ranks;
  for (const char* rank : {"0", "1"}) {
    const std::vector<std::pair<const char*, std::string>> variables = {
        {"RANK", rank},
        {"WORLD_SIZE", "2"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "203.0.113.7"},
        {"MASTER_PORT", port}};
    for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
    ranks.push_back(start(kBusy));
    for (const auto& [name, value] : variables) ::unsetenv(name);
  }
  wait_for_output(calls_ - 1);
  for (const pid_t rank : ranks) {
    // Ranks meet in steps, between which one may have no socket.
    std::set<std::string> seen;
    const Clock::time_point give_up = Clock::now() + seconds(20);
    for (int found = 0; found < 5 && Clock::now() < give_up;) {
      const std::set<std::string> addresses = addresses_of(rank);
      seen.insert(addresses.begin(), addresses.end());
      if (!addresses.empty()) ++found;
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_EQ(seen, std::set<std::string>{"0100007F"});
  }
  for (const pid_t rank : ranks) ::kill(rank, SIGTERM);  // one alone would end the other
  for (const pid_t rank : ranks) wait(rank);
  expect_gone(ranks);
}

TEST_F(Launch, BenchAllreduceAloneIsSingle) {
  const Outcome outcome = linnet({"bench", "allreduce", "--sizes", "64", "--runs", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1 process, single"));
}

}  // namespace
}  // namespace linnet
