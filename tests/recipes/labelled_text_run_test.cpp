// Classifiers of one's own labelled texts: trained, resumed and evaluated from tables of pairs.
#include <gmock/gmock.h>

#include "core/files.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/recipe_check.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using test::causes_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class LabelledTextRun : public test::TinyRun {
 protected:
  void SetUp() override {
    TinyRun::SetUp();
    folder_.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\nblue\ngreen\nsame\n");
    write_pairs("pairs/train.tsv", 40, "same", "other");
    write_pairs("pairs/dev.tsv", 10, "same", "other");
    folder_.write("pairs/test.tsv", "q\tp\nred\tblue\n");
  }
  // Two colours a row; the label says whether they are the same.
  void write_pairs(const std::string& name, int rows, const std::string& yes,
                   const std::string& no) const {
    static constexpr const char* kColours[] = {"red", "blue", "green"};
    std::string table = "p\tq\tlabel\n";
    for (int i = 0; i < rows; ++i) {
      const int a = i % 3, b = i / 3 % 2 == 0 ? a : (a + 1) % 3;
      table += concat(kColours[a], "\t", kColours[b], "\t", a == b ? yes : no, "\n");
    }
    folder_.write(name, table);
  }
  // The classifier of TinyRun on these pairs.
  Recipe pairs(std::vector<std::string> overrides = {}, int token_types = 2) const {
    overrides.insert(
        overrides.begin(),
        {concat("data={kind: tsv, path: ", folder_ / "pairs",
                ", text: p, text_pair: q, context: 8, tokenizer: {kind: wordpiece, path: ",
                folder_ / "vocab.txt", "}}"),
         concat("model.token_types=", token_types)});
    return classifier(overrides);
  }
};

TEST_F(LabelledTextRun, LearnsPairsAndEvaluatesWithoutTheVocabularyFile) {
  const Recipe recipe =
      pairs({"train.max_steps=300", "model.width=16", "evaluate.every_steps=100"});
  check_run(recipe);
  EXPECT_EQ(run(recipe, "learnt").exit_code, 0);
  // The checkpoint keeps the tokenizer.
  remove_all(folder_ / "vocab.txt");
  const EvaluateReport report = evaluate(out("learnt"), {});
  EXPECT_EQ(report.scores.at(0).tokens, 10);
  EXPECT_EQ(report.scores.at(0).accuracy(), 1);
  EXPECT_EQ(report.data, "unchanged");
}

TEST_F(LabelledTextRun, ResumingIsBitForBit) {
  const std::string cls = "model.pooling=cls";
  run(pairs({cls}), "straight");
  run(pairs({cls, "train.max_steps=3"}), "resumed");
  run(pairs({cls}), "resumed");
  expect_equal(left("resumed"), left("straight"), "resumed");
}

TEST_F(LabelledTextRun, TypesNeedATableAndUnlabelledSplitsAreNotScored) {
  EXPECT_THAT(causes_of<UsageError>([&] { run(pairs({}, 0), "untyped"); }),
              StartsWith("conflict model.token_types"));
  run(pairs(), "run");
  EvaluateRequest request;
  request.split = "test";
  EXPECT_EQ(causes_of<UsageError>([&] { evaluate(out("run"), request); }),
            "conflict evaluate.split");
}

TEST_F(LabelledTextRun, OtherDataHaveTheClassesOfTheRun) {
  run(pairs(), "run");
  EvaluateRequest request;
  write_pairs("others/train.tsv", 6, "yes", "no");
  request.overrides = {"data.path=" + folder_ / "others"};
  EXPECT_THAT(test::message_of<UsageError>([&] { evaluate(out("run"), request); }),
              AllOf(HasSubstr("the classes of the data are no, yes"),
                    HasSubstr("set data.classes='[other, same]'")));
  write_pairs("others/train.tsv", 6, "same", "other");
  write_pairs("others/dev.tsv", 1, "same", "other");
  EXPECT_EQ(evaluate(out("run"), request).scores.at(0).tokens, 1);
}

}  // namespace
}  // namespace linnet
