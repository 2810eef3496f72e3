// SIGTERM ends every kind of work soon; training is saved as its last update left it.
#include <signal.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "recipes/engine/checkpoint_store.h"
#include "tests/tools/cli.h"

namespace linnet::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

// What is promised. On a busy machine it takes some 60 ms, under AddressSanitizer, too.
constexpr double kSoon_s = 1;

class Stop : public Cli {
 protected:
  // Sends SIGTERM when `ready` holds, or after `delay_ms` where there is nothing to be seen.
  Outcome stopped(const std::vector<std::string>& arguments, int delay_ms,
                  const std::function<bool()>& ready = {}) {
    const pid_t child = start(arguments);
    for (int i = 0; i < 2000 && !watches(child); ++i) sleep_ms(10);
    for (int i = 0; ready && i < 2000 && !ready(); ++i) sleep_ms(10);
    sleep_ms(delay_ms);
    EXPECT_EQ(::kill(child, SIGTERM), 0);
    const auto sent = Clock::now();
    const Outcome outcome = wait(child);
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - sent).count(), kSoon_s);
    EXPECT_EQ(outcome.code, 3) << arguments[0] << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("stopped by signal 15"));
    return outcome;
  }
  // Whether it has blocked SIGTERM. Before that, which takes long on a busy machine, the signal
  // kills.
  static bool watches(pid_t child) {
    std::ifstream status(concat("/proc/", child, "/status"));
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("SigBlk:")) continue;
      return (std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
    }
    return false;
  }
  static void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
  // What the child wrote to it so far.
  std::string written(const std::string& stream) const {
    const std::string path = folder_ / concat(stream, calls_);
    return exists(path) ? read_file(path) : "";
  }
  void write_long_text(size_t bytes = 60'000'000) {
    std::string text;
    for (int i = 0; text.size() < bytes; ++i) text += concat("word", i, " of a long text\n");
    folder_.write("long/a.txt", text);
    folder_.write("long/b.txt", text);
    folder_.write("long/c.txt", text);
  }
};

TEST_F(Stop, WhileTextIsReadAndEncoded) {
  write_long_text();
  for (const int delay : {20, 150}) stopped({"data", "inspect", "long"}, delay);
  for (const int delay : {150, 600}) {
    stopped({"data", "prepare", "text", "--from", "long", "--tokenizer", "word", "--out", "cache"},
            delay);
  }
  EXPECT_FALSE(exists(folder_ / "cache")) << "nothing was encoded yet";
  stopped({"train", "tiny.yaml", "--out", "run", "data.path=long", "data.tokenizer.kind=word"},
          400);
  EXPECT_FALSE(exists(folder_ / "run"));
}

class StopInTheCache : public Stop {
 protected:
  std::vector<std::string> names(bool temporaries) const {
    std::vector<std::string> found;
    if (!exists(folder_ / "cache")) return found;
    for (const std::string& name : file_system().list(folder_ / "cache")) {
      if ((name.find(".tmp-") != std::string::npos) == temporaries) found.push_back(name);
    }
    return found;
  }
  // Starts it, and holds it (SIGSTOP) where a file of the cache is being written.
  pid_t held_while_writing(const std::vector<std::string>& arguments) {
    for (int attempt = 0; attempt < 50; ++attempt) {
      const pid_t child = start(arguments);
      siginfo_t ended{};
      while (names(true).empty() && ended.si_pid == 0) {
        sleep_ms(1);
        ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT);
      }
      ::kill(child, SIGSTOP);
      int status = 0;
      EXPECT_EQ(::waitpid(child, &status, WUNTRACED), child);
      if (WIFSTOPPED(status) && !names(true).empty()) return child;
      if (WIFSTOPPED(status)) {  // too late
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
      }
      remove_all(folder_ / "cache");
    }
    return -1;
  }
  std::map<std::string, std::string> cache() const {
    std::map<std::string, std::string> files;
    for (const std::string& name : names(false)) files[name] = read_file(folder_ / "cache/" + name);
    return files;
  }
};

// What is left of a file is not taken for a whole one, even after a kill that nothing cleans up.
TEST_F(StopInTheCache, LeavesNothingThatIsTakenForAWholeOne) {
  write_long_text(20'000'000);
  const std::vector<std::string> prepare = {"data",        "prepare", "text",  "--from", "long",
                                            "--tokenizer", "byte",    "--out", "cache"};
  ASSERT_EQ(linnet(prepare).code, 0);
  const std::map<std::string, std::string> whole = cache();
  ASSERT_EQ(whole.size(), 3U);
  for (const int signal : {SIGTERM, SIGINT, SIGKILL}) {
    SCOPED_TRACE(signal);
    remove_all(folder_ / "cache");
    const pid_t child = held_while_writing(prepare);
    ASSERT_GT(child, 0) << "it was never seen to write";
    ASSERT_EQ(::kill(child, signal), 0);
    ASSERT_EQ(::kill(child, SIGCONT), 0);
    const Outcome stopped = wait(child);
    EXPECT_EQ(stopped.code, signal == SIGKILL ? -1 : 3) << stopped.err;
    if (signal != SIGKILL) {
      EXPECT_THAT(stopped.err, HasSubstr(concat("stopped by signal ", signal)));
    }
    EXPECT_EQ(names(true).size(), signal == SIGKILL ? 1U : 0U);
    for (const auto& [name, bytes] : cache()) EXPECT_TRUE(whole.at(name) == bytes) << name;
    const Outcome again = linnet(prepare);
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_THAT(again.err, Not(HasSubstr("rebuilt")));
    EXPECT_TRUE(cache() == whole);
  }
}

TEST_F(Stop, BetweenTheMicroBatchesOfAnUpdate) {
  const std::vector<std::string> train = {"train",
                                          "tiny.yaml",
                                          "--out",
                                          "run",
                                          "train.tokens_per_update=6400000",
                                          "train.micro_batch=1"};
  const auto begun = [&] { return exists(folder_ / "run/metrics.jsonl"); };
  stopped(train, 300, begun);
  EXPECT_EQ(CheckpointStore(folder_ / "run").steps(), std::vector<int64_t>{0});
  EXPECT_THAT(read_file(folder_ / "run/run.lock"), HasSubstr("ended "));
  stopped(train, 300,
          [&] { return written("stderr").find("continuing run at step 0") != std::string::npos; });
}

TEST_F(Stop, TrainingThatHasOnlyItsSampleLeft) {
  const std::vector<std::string> train = {"train", "tiny.yaml", "--out", "run",
                                          "generate.tokens=16000000"};
  const std::string last = folder_ / "run/checkpoints/step-00000004";
  stopped(train, 300, [&] { return exists(last); });
  const Outcome again = linnet({"train", "tiny.yaml", "--out", "run"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr("is gone"))) << "the lock was given up";
}

TEST_F(Stop, EveryCommandThatTakesTime) {
  write_long_text();
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run", "generate.tokens=0"}).code, 0);
  const Outcome text = stopped({"generate", "run", "--prompt", "line", "--tokens", "16000000"}, 300,
                               [&] { return written("stdout").size() > 9; });
  EXPECT_THAT(text.out, AllOf(testing::StartsWith("line"), testing::EndsWith("\n")))
      << "the log goes on in a line of its own";
  for (const int delay : {200, 500}) {
    stopped({"evaluate", "run", "--set", "data.path=long", "--context", "16"}, delay);
    stopped({"attention", "check", "lavo"}, delay);
    stopped({"bench", "attention", "softmax", "--lengths", "16384"}, delay);
  }
}

}  // namespace
}  // namespace linnet::test
