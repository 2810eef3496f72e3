// Tokens at the scored positions of generated sequences: the loss, what is counted, what is
// refused.
#include <gmock/gmock.h>

#include <cmath>

#include "core/files.h"
#include "data/sequences.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/scoring.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TokenPrediction : public test::TinyRun {
 protected:
  static Score score_of(const Recipe& recipe, const ScoreOptions& options) {
    const std::unique_ptr<Task> task = make_task(recipe);
    return score(*task, *build_model(recipe, task->sizes()), options).at(0);
  }
};

TEST_F(TokenPrediction, CountsTheBestTokenAndTheLossOfEveryScoredPosition) {
  const Recipe recipe = sequences({"model.tie_embeddings=false"});
  const std::unique_ptr<Task> task = make_task(recipe);
  EXPECT_EQ(task->kind(), TaskKind::token_prediction);
  const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
  ScoreOptions options;
  options.batch = 7;
  const Score result = score(*task, *model, options).at(0);
  EXPECT_EQ(result.tokens, 60);
  // The same by loops over all positions.
  const Batch all = batch_in_order(make_sequences(recipe.data), Split::validation, 0, 20);
  const NoGrad off;
  const DeviceBatch on_device(all, {});
  const std::vector<float> hidden =
      model->encode(on_device.input, nullptr).value().to_vector<float>();
  const std::vector<float> table =
      model->parameters().tensors().at("output.weight").to_vector<float>();
  int64_t correct = 0;
  double nll = 0;
  for (size_t at = 0; at < all.targets.size(); ++at) {
    if (all.targets[at] == kNotScored) continue;
    std::vector<double> logits(20);
    double sum = 0;
    for (size_t id = 0; id < 20; ++id) {
      for (size_t k = 0; k < 8; ++k)
        logits[id] +=
            static_cast<double>(hidden[at * 8 + k]) * static_cast<double>(table[id * 8 + k]);
      sum += std::exp(logits[id]);
    }
    const auto target = static_cast<size_t>(all.targets[at]);
    nll += std::log(sum) - logits[target];
    correct += std::max_element(logits.begin(), logits.end()) - logits.begin() ==
                       static_cast<int64_t>(target)
                   ? 1
                   : 0;
  }
  EXPECT_EQ(result.correct, correct);
  EXPECT_NEAR(result.nll_sum, nll, 1e-5 * nll);
  EXPECT_NEAR(task->loss(*model, on_device).value().item(), nll, 1e-5 * nll);
}

TEST_F(TokenPrediction, ScoresDoNotDependOnTheBatchAndStopAtWholeSequences) {
  const Recipe recipe = sequences();
  ScoreOptions options;
  const Score alone = score_of(recipe, options);
  options.batch = 20;
  const Score together = score_of(recipe, options);
  EXPECT_EQ(together.correct, alone.correct);
  EXPECT_NEAR(together.nll_sum, alone.nll_sum, 1e-4);
  options.max_tokens = 7;  // three tokens a sequence
  EXPECT_EQ(score_of(recipe, options).tokens, 9);
  options.max_tokens = 1000;
  EXPECT_EQ(score_of(recipe, options).tokens, 60);
}

TEST_F(TokenPrediction, TrainsEvaluatesAndReadsBack) {
  const Recipe recipe = sequences();
  check_run(recipe);
  EXPECT_EQ(parse_recipe(recipe.resolved).resolved, recipe.resolved);
  EXPECT_EQ(run(recipe, "recall").progress.step, 7);
  EXPECT_GE(left("recall").best_step, 2);
  for (const std::string& line : left("recall").metrics) {
    if (line.find("\"evaluation\"") == std::string::npos) continue;
    EXPECT_THAT(line, AllOf(HasSubstr("\"accuracy\""), HasSubstr("\"scored_tokens\": 60"),
                            Not(HasSubstr("perplexity"))));
  }
  EvaluateRequest request;
  request.split = "test";
  const EvaluateReport report = evaluate(out("recall"), request);
  EXPECT_EQ(report.data, "unchanged");
  EXPECT_EQ(report.scores.at(0).tokens, 30);
  EXPECT_THAT(report.text(), HasSubstr("test: accuracy"));
  request.overrides = {"data.pairs=2"};  // other sequences than those of the run
  EXPECT_EQ(evaluate(out("recall"), request).data, "given");
  request.baselines = true;
  EXPECT_THAT(test::message_of<UsageError>([&] { evaluate(out("recall"), request); }),
              HasSubstr("n-gram baselines are for texts"));
  EXPECT_FALSE(exists(join_path(out("recall"), "sample.txt")));
}

// One pair and one slot: the value stands right before the place where it is asked for.
TEST_F(TokenPrediction, LearnsToRecallOnePair) {
  const std::string data =
      "data={kind: recall, pairs: 1, vocabulary: 16, train_examples: 1000, validation_examples: "
      "200, context: 4}";
  const Recipe easy = sequences(
      {data, "model.width=32", "model.attention={name: softmax}", "model.positions=learned",
       "train.tokens_per_update=128", "train.micro_batch=32", "train.max_steps=200",
       "train.log_every_steps=100", "evaluate.every_steps=0", "optim.lr=0.01"});
  run(easy, "easy");
  EXPECT_GE(evaluate(out("easy"), {}).scores.at(0).accuracy(), 0.95);
}

TEST_F(TokenPrediction, RefusesWhatIsForTexts) {
  const auto refusal = [](const Recipe& recipe) {
    return test::causes_of<UsageError>([&] { check_run(recipe); });
  };
  EXPECT_EQ(refusal(sequences({"evaluate.contexts=[8]"})), "conflict evaluate.contexts");
  EXPECT_EQ(refusal(sequences({"evaluate.carry_state=true"})), "conflict evaluate.contexts");
  EXPECT_EQ(refusal(sequences({"task.kind=language_model"})), "conflict task.kind");
  EXPECT_EQ(refusal(recipe({"task.kind=token_prediction"})), "conflict task.kind");
  EXPECT_EQ(refusal(sequences({"model={kind: encoder, attention: {name: softmax}}"})),
            "conflict model.kind");
}

}  // namespace
}  // namespace linnet
