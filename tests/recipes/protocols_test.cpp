// evaluate.protocols: several ways to score one text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "recipes/engine/evaluate.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/scoring.h"
#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::ElementsAre;

class Protocols : public test::TinyRun {
 protected:
  // The tiny recipe on one document of 1,300 bytes, in windows of 512 without and with a stride of
  // 32 where the changes name no others.
  Recipe scored(const std::vector<std::string>& changes = {}) const {
    folder_.write("long.txt", test::some_text(1300, 3));
    std::vector<std::string> all = {concat("data.validation=[", folder_ / "long.txt", "]"),
                                    "train.max_steps=2"};
    all.insert(all.end(), changes.begin(), changes.end());
    const bool others = std::any_of(changes.begin(), changes.end(), [](const std::string& change) {
      return change.starts_with("evaluate.protocols=");
    });
    if (!others) {
      all.emplace_back("evaluate.protocols=[{context: 512}, {context: 512, stride: 32}]");
    }
    return recipe(all);
  }
  // "context 512, stride 512" of each score, and how many tokens it has.
  static std::vector<std::string> told(const EvaluateReport& report) {
    std::vector<std::string> texts;
    for (const Score& score : report.scores) {
      texts.push_back(concat(score.scored.text(true), ": ", score.tokens));
    }
    return texts;
  }
};

// The loss of each of the last `count` targets of tokens [begin, end), seen from `begin`.
std::vector<double> losses_of(const LoadedModel& loaded, const std::vector<int32_t>& tokens,
                              int64_t begin, int64_t end, int64_t count) {
  const int64_t length = end - begin;
  ModelInput input;
  input.tokens =
      Tensor::from(std::vector<int32_t>(tokens.begin() + begin, tokens.begin() + end), {1, length});
  const Tensor targets = Tensor::from(
      std::vector<int32_t>(tokens.begin() + begin + 1, tokens.begin() + end + 1), {1, length});
  const std::vector<double> all = loaded.model->token_head()
                                      .losses(loaded.model->encode(input, nullptr).value(), targets)
                                      .to_vector<double>();
  return {all.end() - count, all.end()};
}

TEST_F(Protocols, AStrideOf32ScoresEachTokenOnceWith480BeforeIt) {
  run(scored(), "run");
  const LoadedModel loaded = load_model(out("run"));
  const auto task = make_task(loaded.recipe, loaded.tokenizer);
  const ScoreOptions options = score_options(loaded.recipe.evaluate);
  ASSERT_EQ(options.protocols.size(), 2U);
  const std::vector<Score> scores = score(*task, *loaded.model, options);
  const ScoringSet set = task->scoring_set(options, options.protocols[1]);
  std::vector<int> times(1300);
  double nll = 0;
  std::vector<int32_t> tokens(1300);
  set.texts->corpus().tokens.read(0, tokens);
  const NoGrad off;
  for (const Window& window : set.texts->windows()) {
    const int64_t first = window.begin + window.context_only, end = window.begin + window.length;
    EXPECT_TRUE(window.begin == 0 || window.context_only == 480) << window.begin;
    for (int64_t input = first; input < end; ++input) ++times[static_cast<size_t>(input) + 1];
    for (const double loss : losses_of(loaded, tokens, std::max<int64_t>(0, first - 480), end,
                                       window.length - window.context_only)) {
      nll += loss;
    }
  }
  EXPECT_EQ(times[0], 0) << "nothing is before the first";
  EXPECT_EQ(std::count(times.begin() + 1, times.end(), 1), 1299);
  EXPECT_EQ(scores[1].tokens, 1299);
  EXPECT_NEAR(scores[1].nll_sum, nll, 1e-5 * nll);
  // Without a stride nothing stands before a window.
  EXPECT_EQ(scores[0].tokens, 1299);
  double plain = 0;
  for (const int64_t begin : {0, 512, 1024}) {
    const int64_t end = std::min<int64_t>(begin + 512, 1299);
    for (const double loss : losses_of(loaded, tokens, begin, end, end - begin)) plain += loss;
  }
  EXPECT_NEAR(scores[0].nll_sum, plain, 1e-5 * plain);
  EXPECT_NE(scores[0].nll_sum, scores[1].nll_sum);
}

TEST_F(Protocols, EveryEvaluationOfARunHasALineForEach) {
  const TrainOutcome outcome =
      run(scored({"evaluate.every_steps=1", "evaluate.at_end=true"}), "run");
  std::vector<std::string> lines;
  for (const std::string& text : left("run").metrics) {
    const JsonValue line = parse_json(text, "line");
    if (line.at("kind").text() != kEvaluationLine) continue;
    lines.push_back(concat(line.at("step").integer(), ": ", line.at("context").integer(), ' ',
                           line.at("stride").integer(), ' ', line.at("mode").text()));
  }
  EXPECT_THAT(lines, ElementsAre("1: 512 512 windows", "1: 512 32 overlapping",
                                 "2: 512 512 windows", "2: 512 32 overlapping"));
  // The first one is what chooses.
  EXPECT_EQ(outcome.last_score->scored.stride, 512);
  EXPECT_EQ(outcome.progress.evaluated.nll, outcome.last_score->nll());
}

TEST_F(Protocols, EvaluateTakesThemUnlessItsOptionsSayOthers) {
  run(scored({"evaluate.protocols=[{context: 512, stride: 32}, {carry_state: true}, {}]"}), "run");
  EXPECT_THAT(told(evaluate(out("run"), {})),
              ElementsAre("context 512, stride 32: 1299", "chunks of 16: 1299",
                          "context 16, stride 16: 1299"));
  EvaluateRequest request;
  request.contexts = {64};
  EXPECT_THAT(told(evaluate(out("run"), request)), ElementsAre("context 64, stride 64: 1299"));
  request = {};
  request.stride = 8;
  EXPECT_THAT(told(evaluate(out("run"), request)), ElementsAre("context 16, stride 8: 1299"));
  request = {};
  request.carry_state = true;
  EXPECT_THAT(told(evaluate(out("run"), request)), ElementsAre("chunks of 16: 1299"));
  request = {};
  request.overrides = {"evaluate.protocols=[{context: 32}]"};
  EXPECT_THAT(told(evaluate(out("run"), request)), ElementsAre("context 32, stride 32: 1299"));
  request = {};
  request.per_token = folder_ / "tokens.h5";
  EXPECT_EQ(test::causes_of<UsageError>([&] { evaluate(out("run"), request); }),
            "conflict --per-token");
}

TEST_F(Protocols, RefusesWhatDoesNotFitTogether) {
  const auto refusal = [&](const std::vector<std::string>& changes) {
    return test::causes_of<UsageError>([&] { check_run(scored(changes)); });
  };
  const std::string place = " at command line: ";
  EXPECT_EQ(refusal({"evaluate.contexts=[512]"}),
            concat("conflict evaluate.contexts", place, "evaluate.contexts"));
  EXPECT_EQ(refusal({"evaluate.stride=16"}),
            concat("conflict evaluate.stride", place, "evaluate.stride"));
  EXPECT_EQ(refusal({"evaluate.carry_state=true"}),
            concat("conflict evaluate.carry_state", place, "evaluate.carry_state"));
  const auto listed = [&](const char* protocol) {
    return refusal({concat("evaluate.protocols=[{context: 16}, ", protocol, "]")});
  };
  EXPECT_EQ(listed("{context: 16, stride: 17}").substr(0, 39),
            "out_of_range evaluate.protocols.stride ");
  EXPECT_EQ(listed("{stride: 4, carry_state: true}").substr(0, 35),
            "conflict evaluate.protocols.stride ");
  EXPECT_EQ(listed("{stride: 17}"), "out_of_range evaluate.protocols");
  EXPECT_EQ(listed("{context: 0}").substr(0, 40), "out_of_range evaluate.protocols.context ");
  EXPECT_EQ(test::causes_of<UsageError>(
                [&] { check_run(classifier({"evaluate.protocols=[{context: 8}]"})); }),
            "conflict evaluate.protocols");
}

}  // namespace
}  // namespace linnet
