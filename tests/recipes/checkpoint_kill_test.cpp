// Processes that are killed while they save: what they said was saved stays readable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/metrics.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

constexpr int kKills = 200;
constexpr int64_t kLastStep = 1'000'000;

std::map<std::string, std::string> files_of(int64_t step) {
  return {{"weights.h5", std::string(200'000, static_cast<char>(step))},
          {"state.json", std::to_string(step)}};
}

// Goes on from the newest checkpoint until it is killed: a metrics line and a checkpoint a step.
// Every finished save is reported through the pipe.
[[noreturn]] void train_until_killed(const std::string& run, int pipe) {
  const test::FailingFileSystem without_syncs(-1, test::Failure::no_space);
  CheckpointStore store(run, 2);
  const NewestCheckpoint newest = store.newest_valid();
  int64_t step = newest.path ? load_checkpoint(*newest.path).step : 0;
  MetricsLog log(run, step > 0 ? step : -1);
  if (step > 0) store.rewind_to(step);
  while (step < kLastStep) {
    ++step;
    TrainMetrics metrics;
    metrics.step = step;
    log.write(metrics);
    store.save(step, files_of(step), JsonValue::object());
    if (::write(pipe, &step, sizeof(step)) != sizeof(step)) ::_exit(1);
  }
  ::_exit(0);
}

TEST(CheckpointKill, NoAcceptedCheckpointIsLost) {
  const test::ScratchDirectory scratch;
  std::mt19937_64 random(1);
  int64_t accepted = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) train_until_killed(scratch.path(), pipe[1]);
    ::close(pipe[1]);
    // The first report shows that the child is at work; then it dies anywhere within a few saves.
    int64_t step = 0;
    ASSERT_EQ(::read(pipe[0], &step, sizeof(step)), ssize_t{sizeof(step)});
    ::usleep(static_cast<useconds_t>(random() % 2000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    do {
      EXPECT_GT(step, accepted);
      accepted = step;
    } while (::read(pipe[0], &step, sizeof(step)) == ssize_t{sizeof(step)});
    ::close(pipe[0]);
    const NewestCheckpoint newest = CheckpointStore(scratch.path()).newest_valid();
    ASSERT_TRUE(newest.path.has_value());
    EXPECT_TRUE(newest.skipped.empty());
    const Checkpoint loaded = load_checkpoint(*newest.path);
    // The save that was cut short may have been complete, but not yet reported.
    EXPECT_TRUE(loaded.step == accepted || loaded.step == accepted + 1) << loaded.step;
    EXPECT_EQ(loaded.files, files_of(loaded.step));
  }
  EXPECT_GE(accepted, kKills);
  // Metrics have every step once, in order.
  { const MetricsLog log(scratch.path(), accepted); }
  const std::string text = read_file(scratch / "metrics.jsonl");
  int64_t expected = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    const JsonValue line = parse_json(text.substr(begin, end - begin), "line");
    ASSERT_EQ(line.at("step").integer(), ++expected);
    begin = end + 1;
  }
  EXPECT_EQ(expected, accepted);
}

}  // namespace
}  // namespace linnet
