// linnet generate --speculate, tree fit and bench tree: heads are trained, a tree is fitted, texts
// are those without guesses.
#include <sstream>

#include "core/json.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class SpeculateCommand : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run", "generate.tokens=0",
                      "model.medusa={heads: 2}", "train.max_steps=60", "optim.lr=0.03",
                      "checkpoint.every_steps=60"})
                  .code,
              0);
    folder_.write("chain.yaml", "chain: 2\n");
    folder_.write("prompts.txt", "line 1\nline 22 of\n");
  }
  std::vector<JsonValue> lines(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"generate", "run", "--json", "--prompts", "prompts.txt",
                                         "--n", "2", "--tokens", "30"});
    const test::Outcome outcome = linnet(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<JsonValue> result;
    std::istringstream text(outcome.out);
    for (std::string line; std::getline(text, line);) result.push_back(parse_json(line, "stdout"));
    return result;
  }
};

TEST_F(SpeculateCommand, TextsAreThoseWithoutGuessesInFewerPasses) {
  for (const std::vector<std::string>& sampling :
       {std::vector<std::string>{"--temperature", "0"}, {"--temperature", "0.8", "--seed", "4"}}) {
    const auto plain = lines(sampling);
    std::vector<std::string> guessed = sampling;
    guessed.insert(guessed.end(), {"--speculate", "chain.yaml", "--accept", "exact"});
    const auto found = lines(guessed);
    ASSERT_EQ(found.size(), 4U);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(found[i].at("text").text(), plain[i].at("text").text());
      EXPECT_EQ(found[i].at("tokens").dump(), plain[i].at("tokens").dump());
      const int64_t passes = found[i].at("passes").integer();
      EXPECT_LT(passes, 29) << "guesses were taken";
      int64_t tokens = 1, counted = 0;
      const auto& accepted = found[i].at("accepted").elements();
      for (size_t n = 0; n < accepted.size(); ++n) {
        counted += accepted[n].integer();
        tokens += static_cast<int64_t>(n + 1) * accepted[n].integer();
      }
      EXPECT_EQ(counted, passes);
      EXPECT_EQ(tokens, 30);
      EXPECT_NEAR(found[i].at("tokens_per_pass").number(), 29.0 / static_cast<double>(passes),
                  1e-12);
    }
    EXPECT_EQ(plain[0].find("passes"), nullptr);
  }
  const test::Outcome text = linnet({"generate", "run", "--prompt", "line 1", "--temperature", "0",
                                     "--tokens", "30", "--speculate", "chain.yaml"});
  EXPECT_EQ(text.out, linnet({"generate", "run", "--prompt", "line 1", "--temperature", "0",
                              "--tokens", "30"})
                          .out);
  EXPECT_THAT(text.err, HasSubstr(" tokens a pass"));
}

TEST_F(SpeculateCommand, AFittedTreeIsOneThatGenerateTakes) {
  const test::Outcome fitted =
      linnet({"tree", "fit", "run", "--guesses", "5", "--runs", "2", "--out", "tree.yaml"});
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  EXPECT_EQ(fitted.out, "");
  EXPECT_THAT(fitted.err, HasSubstr("the tree is in tree.yaml"));
  const test::Outcome json =
      linnet({"tree", "fit", "run", "--guesses", "5", "--runs", "2", "--json"});
  const JsonValue line = parse_json(json.out, "stdout");
  EXPECT_EQ(line.at("shares").size(), 2U);
  EXPECT_LE(line.at("paths").size(), 5U);
  EXPECT_GE(line.at("speed_up").number(), 1);
  // Guesses may not pay: then it has none.
  const std::string text = read_file(folder_ / "tree.yaml");
  EXPECT_THAT(text, StartsWith("# A tree for run/checkpoints/step-"));
  EXPECT_EQ(
      linnet({"generate", "run", "--prompt", "line 1", "--temperature", "0", "--tokens", "9",
              "--speculate", "tree.yaml"})
          .out,
      linnet({"generate", "run", "--prompt", "line 1", "--temperature", "0", "--tokens", "9"}).out);
}

TEST_F(SpeculateCommand, TheBenchmarkComparesThreeWays) {
  const test::Outcome outcome =
      linnet({"bench", "tree", "run", "--tree", "chain.yaml", "--prompt-file", "prompts.txt",
              "--tokens", "20", "--rounds", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("another text")));
  const JsonValue line = parse_json(outcome.out, "stdout");
  ASSERT_EQ(line.at("ways").size(), 3U);
  const auto& ways = line.at("ways").elements();
  EXPECT_EQ(ways[0].at("tokens_per_pass").number(), 1);
  EXPECT_EQ(ways[1].at("tokens_per_pass").number(), ways[2].at("tokens_per_pass").number());
  EXPECT_GT(ways[1].at("tokens_per_pass").number(), 1);
  EXPECT_EQ(line.at("nodes").integer(), 3);
}

TEST_F(SpeculateCommand, RefusesToCompareNothing) {
  expect_error({"bench", "tree", "run", "--tree", "chain.yaml", "--prompt-file", "prompts.txt",
                "--tokens", "1"},
               2, "--tokens: must be 2 to 1048576, found 1");
  expect_error({"tree", "fit", "run", "--max-tokens", "1"}, 2,
               "too few tokens are scored to count a guess of Medusa head 1: use a larger "
               "--max-tokens, or a --split with longer texts");
}

TEST_F(SpeculateCommand, CountsOneOfAThingAsOne) {
  folder_.write("one.yaml", "chain: 1\n");
  const test::Outcome bench =
      linnet({"bench", "tree", "run", "--tree", "one.yaml", "--prompt-file", "prompts.txt",
              "--tokens", "2", "--rounds", "1", "--device", "cpu", "--threads", "1"});
  EXPECT_THAT(bench.out, StartsWith("cpu, 1 thread, 1 guess of 1 head, ")) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("with one for each of 1 candidate, "));
}

// One layer of width 8, two heads: a token has 3 x 8 numbers of q, k and v, the state of linear
// attention 2 x (4 x 4 + 4).
TEST_F(SpeculateCommand, TheBenchmarkTellsMemoryByShapes) {
  folder_.write("wide.yaml", "paths: [[0], [1], [0, 0]]\n");  // 4 nodes, 2 candidates of 3 tokens
  std::vector<std::string> command = {
      "bench",    "tree", "run",      "--tree", "wide.yaml",     "--tokens",   "2",
      "--rounds", "1",    "--device", "cpu",    "--prompt-file", "prompts.txt"};
  const test::Outcome text = linnet(command);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("\nby shapes, states and the tree's q, k and v: 0.001 MiB with a "
                                  "shared state, 0.001 MiB with one for each of 2 candidates, 1.6 "
                                  "times as much\n"));
  command.emplace_back("--json");
  const JsonValue line = parse_json(linnet(command).out, "stdout");
  constexpr int64_t kState = 2 * (4 * 4 + 4) * 4, kToken = 3 * 8 * 4;
  EXPECT_EQ(line.at("state_bytes").integer(), kState);
  EXPECT_EQ(line.at("shared_bytes").number(), kState + 4 * kToken);
  EXPECT_EQ(line.at("copied_bytes").number(), 2 * (kState + 3 * kToken));
}

}  // namespace
}  // namespace linnet
