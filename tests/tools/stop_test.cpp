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

constexpr double kSoon_s = 2;  // of the second that is meant: other tests use the same cores

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
  void write_long_text() {
    std::string text;
    for (int i = 0; text.size() < 60'000'000; ++i) text += concat("word", i, " of a long text\n");
    folder_.write("long/a.txt", text);
    folder_.write("long/b.txt", text);
    folder_.write("long/c.txt", text);
  }
};

TEST_F(Stop, WhileTextIsReadAndEncoded) {
  write_long_text();
  for (const int delay : {150, 400}) stopped({"data", "inspect", "long"}, delay);
  for (const int delay : {150, 600}) {
    stopped({"data", "prepare", "text", "--from", "long", "--tokenizer", "word", "--out", "cache"},
            delay);
  }
  EXPECT_FALSE(exists(folder_ / "cache")) << "nothing was encoded yet";
  stopped({"train", "tiny.yaml", "--out", "run", "data.path=long", "data.tokenizer.kind=word"},
          400);
  EXPECT_FALSE(exists(folder_ / "run"));
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
