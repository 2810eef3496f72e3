// Trainers that begin at the same time on one run directory: one trains, the others say why not.
#include <signal.h>

#include <cstdlib>

#include "core/json.h"
#include "core/sanitizers.h"
#include "recipes/engine/checkpoint_store.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;

constexpr int kTrainers = 3;

// By hand, LINNET_RACES=200 makes a campaign of it. Races are between processes: to repeat one
// tries other timings, which needs no sanitizer. What a sanitizer looks at, the code of the winner
// and of the refused in a new folder and in one that exists, runs in the first two.
int races() {
  const char* text = std::getenv("LINNET_RACES");
  return text != nullptr ? std::atoi(text) : kAddressSanitizer || kThreadSanitizer ? 4 : 20;
}

class Races : public test::Cli {
 protected:
  std::vector<std::string> command(const std::string& run, int seed, int steps) const {
    return {"train",
            "tiny.yaml",
            "--out",
            run,
            concat("seed=", seed),
            "--threads",
            "1",
            concat("train.max_steps=", steps)};
  }
  // All at once.
  std::vector<Outcome> together(const std::vector<std::vector<std::string>>& commands) {
    std::vector<std::pair<pid_t, int>> children;
    for (const std::vector<std::string>& arguments : commands) {
      const pid_t child = start(arguments);
      children.emplace_back(child, calls_);
    }
    std::vector<Outcome> outcomes;
    for (const auto& [child, call] : children) outcomes.push_back(wait(child, call));
    return outcomes;
  }
  // The one sentence of a trainer that does not train.
  static void expect_refused(const Outcome& outcome, const std::string& run) {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    const size_t at = outcome.err.find("error: ");
    ASSERT_NE(at, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find('\n', at), outcome.err.size() - 1) << outcome.err;
    EXPECT_THAT(outcome.err.substr(at), testing::HasSubstr(run));
    EXPECT_THAT(outcome.err.substr(at), testing::HasSubstr("--out"));
  }
  // metrics.jsonl has each update once, in order.
  void expect_updates(const std::string& run, int64_t updates) {
    const std::string path = join_path(folder_ / run, "metrics.jsonl"), text = read_file(path);
    int64_t last = 0;
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      const JsonValue line = parse_json(text.substr(begin, text.find('\n', begin) - begin), path);
      if (line.at("kind").text() == "train") {
        EXPECT_EQ(line.at("step").integer(), ++last) << run;
      }
    }
    EXPECT_EQ(last, updates) << run;
  }
  std::map<std::string, std::string> checkpoint(const std::string& run, int64_t step) const {
    return load_checkpoint(CheckpointStore(folder_ / run).path_of(step)).files;
  }
};

TEST_F(Races, OneTrainsAndTheOthersAreRefused) {
  std::vector<std::map<std::string, std::string>> alone;
  for (int seed = 0; seed < kTrainers; ++seed) {
    const std::string run = concat("alone-", seed);
    ASSERT_EQ(linnet(command(run, seed, 4)).code, 0);
    alone.push_back(checkpoint(run, 4));
  }
  for (int race = 0; race < races(); ++race) {
    SCOPED_TRACE(concat("race ", race));
    const std::string run = concat("run-", race);
    if (race % 2 == 1) create_directories(folder_ / run);
    std::vector<std::vector<std::string>> commands;
    for (int seed = 0; seed < kTrainers; ++seed) commands.push_back(command(run, seed, 4));
    const std::vector<Outcome> begun = together(commands);
    int winner = -1;
    for (int seed = 0; seed < kTrainers; ++seed) {
      if (begun[seed].code != 0) {
        expect_refused(begun[seed], run);
        continue;
      }
      EXPECT_EQ(winner, -1) << "two trained";
      winner = seed;
    }
    ASSERT_GE(winner, 0) << begun[0].err;
    EXPECT_EQ(checkpoint(run, 4), alone[winner]);
    expect_updates(run, 4);
    // And going on with it: who comes after the end finds nothing to do.
    const std::vector<Outcome> resumed = together(std::vector(kTrainers, command(run, winner, 6)));
    int done = 0;
    for (const Outcome& outcome : resumed) {
      done += outcome.code == 0;
      if (outcome.code != 0) expect_refused(outcome, run);
    }
    EXPECT_GE(done, 1);
    expect_updates(run, 6);
  }
}

// The trainer deletes each checkpoint as soon as it has the next.
TEST_F(Races, AnEvaluatorBesideATrainerThatKeepsOneReadsIt) {
  const pid_t trainer =
      start({"train", "tiny.yaml", "--out", "run", "--threads", "1", "train.max_steps=1000000",
             "train.log_every_steps=1000000", "checkpoint={every_steps: 1, keep: 1, best: none}"});
  const int call = calls_;
  const CheckpointStore store(folder_ / "run");
  for (int i = 0; i < 1000 && store.steps().empty(); ++i) ::usleep(20'000);
  for (int i = 0; i < races(); ++i) {
    const Outcome outcome = linnet({"evaluate", "run", "--json", "--threads", "1"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_EQ(::waitpid(trainer, nullptr, WNOHANG), 0) << "it trained all the time";
  ASSERT_EQ(::kill(trainer, SIGTERM), 0);
  EXPECT_EQ(wait(trainer, call).code, 3);
}

}  // namespace
}  // namespace linnet
