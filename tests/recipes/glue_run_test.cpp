// GLUE's tasks trained and evaluated: values, two development sets, predictions.
#include <gmock/gmock.h>

#include "core/files.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/recipe_check.h"
#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

using test::causes_of;
using testing::StartsWith;

class GlueRun : public test::RowKinds {};

TEST_F(GlueRun, ValuesAreLearntScoredAndPredicted) {
  write_scores("STS-B/train.tsv", 50, true);
  write_scores("STS-B/dev.tsv", 25, true);
  write_scores("STS-B/test.tsv", 7, false);
  const std::vector<std::string> changes = {"train.max_steps=150", "model.width=16",
                                            "optim.lr=0.01", "checkpoint.best=nll",
                                            "evaluate.every_steps=50"};
  EXPECT_THAT(causes_of<UsageError>([&] { run(glue("STS-B"), "unscored"); }),
              StartsWith("conflict checkpoint.best"));
  const Recipe recipe = glue("STS-B", changes);
  check_run(recipe);
  EXPECT_EQ(run(recipe, "values").exit_code, 0);
  const EvaluateReport report = evaluate(out("values"), {});
  const Score& score = report.scores.at(0);
  EXPECT_EQ(score.tokens, 25);
  EXPECT_GT(score.pearson(), 0.7);
  EXPECT_GT(score.spearman(), 0.6);
  EXPECT_THAT(score.text(), StartsWith("validation: Pearson 0."));
  const JsonValue line = report.json().at("scores").elements().at(0);
  EXPECT_EQ(line.at("pearson").number(), score.pearson());
  EXPECT_EQ(line.find("accuracy"), nullptr);
  EvaluateRequest request;
  request.split = "test";
  request.predictions = folder_ / "STS-B.tsv";
  EXPECT_TRUE(evaluate(out("values"), request).scores.empty());
  const std::string text = read_file(request.predictions);
  EXPECT_THAT(text, StartsWith("index\tprediction\n0\t"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8);
}

// Points that share their data are each checked against what these hold.
TEST_F(GlueRun, EveryPointOfASweepIsCheckedAgainstTheData) {
  write_scores("STS-B/train.tsv", 50, true);
  write_scores("STS-B/dev.tsv", 25, true);
  const Recipe recipe = glue("STS-B", {"checkpoint.best=nll"});
  const std::string path = folder_.write("stsb.yaml", to_yaml(recipe.resolved));
  const auto check = [&](const std::string& change) {
    return causes_of<UsageError>([&] { check_recipe(path, {change}); }, folder_.path());
  };
  EXPECT_EQ(check("sweep={optim.lr: [0.01, 0.02], model.token_types: [2, 3]}"), "nothing thrown");
  EXPECT_EQ(check("sweep={model.token_types: [2, 0]}"),
            "conflict model.token_types at command line: sweep: model.token_types at point "
            "token_types=0");
  EXPECT_EQ(check("sweep={checkpoint.best: [nll, accuracy]}"),
            "conflict checkpoint.best at command line: sweep: checkpoint.best at point "
            "best=accuracy");
}

TEST_F(GlueRun, PredictionsAreTheClassesThatWereScored) {
  const std::string head = "index\tsentence1\tsentence2\tlabel\n";
  std::string rows;
  for (int i = 0; i < 12; ++i)
    rows += concat(i, "\tab\t", i % 3 == 0 ? "ab\tentailment\n" : "cd\tnot_entailment\n");
  for (const char* name : {"RTE/train.tsv", "RTE/dev.tsv"}) folder_.write(name, head + rows);
  run(glue("RTE"), "rte");
  EvaluateRequest request;
  request.predictions = folder_ / "RTE.tsv";
  request.batch = 5;
  const EvaluateReport report = evaluate(out("rte"), request);
  const std::string text = read_file(request.predictions);
  int64_t right = 0;
  for (int i = 0; i < 12; ++i) {
    const std::string label = i % 3 == 0 ? "\tentailment\n" : "\tnot_entailment\n";
    right += text.find(concat("\n", i, label)) != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(right, report.scores.at(0).correct);
  EXPECT_EQ(causes_of<UsageError>([&] {
              run(recipe(), "text");
              evaluate(out("text"), request);
            }),
            "conflict --predictions");
}

TEST_F(GlueRun, BothDevelopmentSetsOfMnliAreScored) {
  const std::string head = "index\tsentence1\tsentence2\tgold_label\n";
  const std::string rows = "0\ta\tb\tneutral\n1\ta\tc\tentailment\n2\tb\tc\tcontradiction\n";
  folder_.write("MNLI/train.tsv", head + rows);
  folder_.write("MNLI/dev_matched.tsv", head + rows);
  folder_.write("MNLI/dev_mismatched.tsv", head + rows + "3\td\te\tneutral\n");
  run(glue("MNLI"), "mnli");
  EXPECT_EQ(evaluate(out("mnli"), {}).scores.at(0).tokens, 3);
  EvaluateRequest request;
  request.overrides = {"data.section=mismatched"};
  const EvaluateReport report = evaluate(out("mnli"), request);
  EXPECT_EQ(report.scores.at(0).tokens, 4);
  EXPECT_EQ(report.data, "given");
}

}  // namespace
}  // namespace linnet
