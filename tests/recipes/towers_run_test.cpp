// Classifiers of pairs that go through two towers, from files to predictions: bad rows, cuts, what
// is refused.
#include <gmock/gmock.h>

#include <sstream>

#include "core/files.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/scoring.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using test::causes_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class TowersRun : public test::TinyRun {
 protected:
  std::string test_file() const { return folder_ / "pairs/new_aan_pairs.test.tsv"; }
  // The lines of a file of predictions but the first, "index TAB class".
  static std::vector<std::string> lines_of(const std::string& path) {
    std::istringstream text(read_file(path));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    EXPECT_EQ(lines.at(0), "index\tprediction");
    lines.erase(lines.begin());
    return lines;
  }
};

TEST_F(TowersRun, EveryPairIsPredictedOnceWhateverTheBatch) {
  run(pairs({"train.max_steps=40", "optim.lr=0.02", "evaluate.every_steps=40"}), "run");
  std::vector<std::vector<std::string>> predicted;
  for (const int64_t batch : {1, 7, 20}) {
    EvaluateRequest request;
    request.predictions = folder_ / "predictions.tsv";
    request.batch = batch;
    const EvaluateReport report = evaluate(out("run"), request);
    predicted.push_back(lines_of(request.predictions));
    const std::vector<std::string>& lines = predicted.back();
    ASSERT_EQ(lines.size(), 20U) << batch;
    int64_t right = 0;
    for (int i = 0; i < 20; ++i) {  // every third pair is of class 1
      const std::string& line = lines[static_cast<size_t>(i)];
      EXPECT_THAT(line, StartsWith(concat(i, "\t"))) << batch;
      right += line == concat(i, "\t", i % 3 == 0 ? 1 : 0) ? 1 : 0;
    }
    EXPECT_EQ(right, report.scores.at(0).correct) << batch;
  }
  EXPECT_EQ(predicted[1], predicted[0]);
  EXPECT_EQ(predicted[2], predicted[0]);
}

TEST_F(TowersRun, BadRowsAreRefusedOrLeftOutWhole) {
  const Recipe refused = pairs(), skipped = pairs({"data.bad_rows=skip"});
  const std::string good = "1.0\ta\tb\tone\ttwo\n";
  // The second text of a pair is bad where the first one is not.
  folder_.write("pairs/new_aan_pairs.test.tsv",
                concat("0.0\ta\tb\tfirst\t\n", good, "2.0\ta\tb\tc\td\n", good, "0.0\ta\n",
                       "0.0\ta\tb\tc\td\xff\n", good));
  EXPECT_THAT(test::message_of([&] { make_task(refused); }),
              AllOf(StartsWith(concat(test_file(), ":1: text2: the text is empty")),
                    HasSubstr("data.bad_rows: skip")));
  const std::unique_ptr<Task> task = make_task(skipped);
  EXPECT_THAT(task->take_warnings(),
              ElementsAre(concat(test_file(), ": 4 rows are left out, line 1, 3, 5, 6; the first: ",
                                 "text2: the text is empty")));
  const std::unique_ptr<Transformer> model = build_model(skipped, task->sizes());
  ScoreOptions options;
  options.split = Split::test;
  EXPECT_EQ(score(*task, *model, options).at(0).tokens, 3);
  const std::vector<Prediction> predictions = task->predict(*model, options);
  std::vector<int64_t> rows;
  for (const Prediction& prediction : predictions) rows.push_back(prediction.row);
  EXPECT_THAT(rows, ElementsAre(1, 3, 6));  // of the file
  // The rows that are left are equal.
  EXPECT_EQ(predictions[0].text, predictions[2].text);
}

TEST_F(TowersRun, WhatIsCutIsSaidAndScoresAreThoseOfTheShortTexts) {
  const std::vector<std::string> cut = {"data.max_bytes=4"};
  run(pairs(cut), "run");
  const std::unique_ptr<Task> task = make_task(pairs(cut));
  EXPECT_THAT(task->take_warnings(),
              testing::Contains(HasSubstr("validation: 26 of 40 texts are longer than 4 bytes")));
  const LoadedModel loaded = load_model(out("run"));
  const auto nll = [&](const std::vector<std::string>& changes) {
    return score(*make_task(pairs(changes)), *loaded.model, {}).at(0).nll();
  };
  EXPECT_NEAR(nll({"data.max_bytes=4", "data.context=4"}), nll(cut), 1e-5);
  EXPECT_NE(nll({}), nll(cut));
  // A CLS token takes the room of a full row's last byte, or is refused.
  check_run(pairs({"data.max_bytes=16", "model.pooling=cls"}));
  EXPECT_EQ(causes_of<UsageError>([&] {
              make_task(pairs(
                  {"data.context=4", "data.max_bytes=4", "data.cls=keep", "model.pooling=cls"}));
            }),
            "out_of_range data.context");
  EXPECT_NO_THROW(make_task(pairs({"data.context=4", "data.max_bytes=4", "model.pooling=cls"})));
}

// Of 16 tokens in each of its rows.
TEST_F(TowersRun, AnExampleIsTwoRowsOfTokens) {
  const std::string path = folder_.write("pairs.yaml", to_yaml(pairs().resolved));
  const std::vector<std::string> tokens = {"train.examples_per_update=null",
                                           "sweep={train.tokens_per_update: [64, 48]}"};
  EXPECT_EQ(causes_of<UsageError>([&] { check_recipe(path, tokens); }, folder_.path()),
            "conflict train.tokens_per_update at command line: sweep: train.tokens_per_update at "
            "point tokens_per_update=48");
  const std::unique_ptr<Task> task = make_task(pairs());
  EXPECT_EQ(task->tokens_per_example(), 32);
  EXPECT_EQ(task->train_batch(0, 2).B, 4);
}

// Twelve pairs of 2 x 16 tokens an update, said in either way.
TEST_F(TowersRun, AStateIsTakenOverByUpdatesOfTheSameSize) {
  run(pairs({"train.max_steps=2"}), "run");
  const auto begun = [&](int tokens) {
    const Recipe recipe =
        pairs({"train.examples_per_update=null", concat("train.tokens_per_update=", tokens),
               concat("init={state: all, from: ", out("run"), "}")});
    return causes_of<UsageError>([&] { run(recipe, concat("begun-", tokens)); }, folder_.path());
  };
  EXPECT_EQ(begun(384), "nothing thrown");
  EXPECT_THAT(begun(192), StartsWith("conflict train.tokens_per_update at run/checkpoints/"));
}

TEST_F(TowersRun, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(test::message_of<UsageError>([&] { pairs({"model.attention={name: mamba2}"}); }),
              HasSubstr("mamba2"));
  EXPECT_EQ(causes_of<UsageError>(
                [&] { check_run(pairs({"model={kind: decoder, attention: {name: softmax}}"})); }),
            "conflict model.kind");
  run(pairs(), "run");
  EvaluateRequest request;
  request.overrides = {"data.max_bytes=3"};
  EXPECT_EQ(evaluate(out("run"), request).scores.at(0).tokens, 20);
  // Single texts for a model of pairs.
  folder_.write("aclImdb/test/neg/0_1.txt", "bad");
  folder_.write("aclImdb/test/pos/0_9.txt", "good");
  const LoadedModel loaded = load_model(out("run"));
  const std::unique_ptr<Task> single =
      make_task(classifier({concat("data={kind: lra_text, path: ", folder_ / "aclImdb",
                                   ", validation_from: test, context: 16}")}));
  EXPECT_THAT(test::message_of<UsageError>([&] { score(*single, *loaded.model, {}); }),
              HasSubstr("each example of the data has one row"));
}

}  // namespace
}  // namespace linnet
