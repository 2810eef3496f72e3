// A run and its data: found from any folder, and what happens when they changed since training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/evaluate.h"
#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using test::InFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class ChangedData : public test::TinyRun {
 protected:
  // Files split automatically, in a folder that is named relative to the current one.
  Recipe relative(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all = {
        "data={kind: text, path: books, context: 16, cache: false, "
        "validation_fraction: 0.3, test_fraction: 0.3}"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return recipe(all);
  }
  void write_books(const std::string& folder, uint64_t seed) const {
    for (uint64_t i = 0; i < 6; ++i) {
      folder_.write(concat(folder, "/books/", i, ".txt"), test::some_text(300, seed + i));
    }
  }
  // EvaluateReport::data, and what was said.
  struct Compared {
    std::string data, said;
  };
  Compared compared(const std::string& name, const EvaluateRequest& request = {}) const {
    set_log_level(LogLevel::warning);
    testing::internal::CaptureStderr();
    const EvaluateReport report = evaluate(out(name), request);
    EXPECT_EQ(report.json().at("data").text(), report.data);
    set_log_level(LogLevel::error);
    return {report.data, testing::internal::GetCapturedStderr()};
  }
  std::string refusal(const Recipe& recipe, const std::string& name) const {
    return test::causes_of<UsageError>([&] { run(recipe, name); });
  }
  // What is refused where the data of a run are not those that it was trained on.
  std::string conflict(const std::string& name) const { return "conflict data at " + out(name); }
};

TEST_F(ChangedData, ARunDoesNotGoOnWithOtherData) {
  run(recipe(), "straight");
  run(recipe({"train.max_steps=3"}), "run");
  const Left before = left("run");
  for (const auto& [file, split] :
       {std::pair("train0.txt", "train"), std::pair("valid1.txt", "validation")}) {
    const std::string text = read_file(folder_ / file);
    folder_.write(file, "x" + text.substr(1));
    EXPECT_EQ(refusal(recipe(), "run"), conflict("run"));
    EXPECT_THAT(test::message_of<UsageError>([&] { run(recipe(), "run"); }),
                AllOf(testing::StartsWith(concat("the ", split, " split of the data in ")),
                      HasSubstr(out("run")), HasSubstr("restore the files, or start a new run"),
                      Not(HasSubstr("\n"))));
    EXPECT_EQ(test::causes_of<UsageError>([&] {
                train(recipe(), {out("run"), "auto", {}, true});
              }),
              conflict("run"));
    expect_equal(left("run"), before, file);
    folder_.write(file, text);
  }
  folder_.write("train9.txt", "one more");
  EXPECT_EQ(refusal(recipe(), "run"), conflict("run"));
  file_system().remove(folder_ / "train9.txt");
  // Restored, and with other text in a split that training does not look at.
  folder_.write("test0.txt", "another");
  run(recipe(), "run");
  expect_equal(left("run"), left("straight"), "restored");
}

TEST_F(ChangedData, OnlySplitsThatAreUsedHaveToStay) {
  const std::vector<std::string> unscored = {"evaluate.every_steps=0"};
  run(recipe(unscored), "run");
  folder_.write("valid1.txt", test::some_text(200, 8));
  run(recipe(unscored), "run");
  const auto changed = [&] {
    const Recipe scored = recipe({"evaluate.every_steps=2"});
    EXPECT_EQ(refusal(scored, "run"), conflict("run"));
    return test::message_of<UsageError>([&] { run(scored, "run"); });
  };
  EXPECT_THAT(changed(), HasSubstr("the validation split "));
  folder_.write("train1.txt", "changed");
  EXPECT_THAT(changed(), HasSubstr("the train and validation splits "));
}

TEST_F(ChangedData, EvaluationSaysThatDataChanged) {
  run(recipe(), "run");
  EXPECT_EQ(compared("run").data, "unchanged");
  EXPECT_THAT(compared("run").said, IsEmpty());
  folder_.write("valid1.txt", test::some_text(200, 8));
  EXPECT_EQ(compared("run").data, "changed");
  EXPECT_THAT(compared("run").said,
              AllOf(HasSubstr(concat("warning: the validation split of the data in ",
                                     folder_.path(), " changed since training")),
                    HasSubstr("--set data.path=DIR")));
  EvaluateRequest request;
  request.split = "test";
  EXPECT_EQ(compared("run", request).data, "unchanged");
  folder_.write("train1.txt", "changed");
  EXPECT_EQ(compared("run", request).data, "unchanged");
  request.baselines = true;
  EXPECT_THAT(compared("run", request).said, HasSubstr("the train split"));
  // Settings that leave the data as they are compare them all the same.
  request = {};
  request.overrides = {"data.context=8", "evaluate.batch=2"};
  EXPECT_EQ(compared("run", request).data, "changed");
  request.overrides = {concat("data.validation=[", folder_ / "valid1.txt", "]")};
  EXPECT_EQ(compared("run", request).data, "given");
  EXPECT_THAT(compared("run", request).said, IsEmpty());
}

TEST_F(ChangedData, ExamplesOfAClassifierAreComparedToo) {
  run(classifier(), "generated");
  EXPECT_EQ(compared("generated").data, "unchanged");
  for (const char* name : {"basic_train.tsv", "basic_val.tsv"}) {
    folder_.write(name, "Source\tTarget\n[MAX 2 9 ]\t9\n[MIN 4 7 ]\t4\n[MAX 2 3 ]\t3\n");
  }
  const Recipe read =
      classifier({concat("data={kind: listops, path: ", folder_.path(), ", context: 16}"),
                  "train.examples_per_update=2"});
  run(read, "read");
  EXPECT_EQ(compared("read").data, "unchanged");
  folder_.write("basic_val.tsv", "Source\tTarget\n[MAX 2 9 ]\t9\n[MIN 4 7 ]\t4\n[MAX 1 3 ]\t3\n");
  EXPECT_EQ(compared("read").data, "changed");
  EXPECT_EQ(refusal(read, "read"), conflict("read"));
}

TEST_F(ChangedData, ARelativePathIsFoundFromAnotherFolder) {
  write_books("home", 1);
  write_books("away", 50);
  {
    const InFolder home(folder_ / "home");
    run(relative(), "straight");
    run(relative({"train.max_steps=3"}), "run");
    run(relative({"train.max_steps=3", "data.path=books/*.txt"}), "pattern");
    run(relative({"train.max_steps=3", "data.path=''", "data.train=[books/0.txt]",
                  "data.validation=[books/1.txt]"}),
        "lists");
  }
  // Where there is a folder of that name with other texts, and where there is none.
  for (const char* folder : {"away", "nowhere"}) {
    const InFolder there(folder_ / folder);
    for (const char* name : {"run", "pattern", "lists"}) {
      EXPECT_EQ(compared(name).data, "unchanged") << folder << " " << name;
    }
    EvaluateRequest request;
    request.overrides = {"data.path=books"};
    if (exists("books")) {
      EXPECT_EQ(compared("run", request).data, "given");
      EXPECT_NE(evaluate(out("run"), request).scores.at(0).nll_sum,
                evaluate(out("run"), {}).scores.at(0).nll_sum);
    } else {
      EXPECT_EQ(test::causes_of([&] { evaluate(out("run"), request); }),
                "not_found data.path at books");
    }
  }
  {
    const InFolder away(folder_ / "away");
    run(relative(), "run");
    expect_equal(left("run"), left("straight"), "from another folder");
  }
  // A run that was moved together with its data goes on from there.
  file_system().rename(folder_ / "home", folder_ / "moved");
  {
    const InFolder moved(folder_ / "moved");
    EXPECT_EQ(compared("run").data, "unchanged");
    EXPECT_EQ(compared("pattern").data, "unchanged");
  }
  const InFolder nowhere(folder_ / "nowhere");
  EXPECT_EQ(test::causes_of([&] { evaluate(out("run"), {}); }),
            concat("not_found data.path at ", folder_ / "home/books"));
}

TEST_F(ChangedData, ARunGoesOnWithItsOwnTokenizer) {
  const std::vector<std::string> words = {"data.tokenizer={kind: word, path: " +
                                          folder_.write("words.txt", "<unk>\n<eos>\nthe\nold\n") +
                                          "}"};
  run(recipe(words), "straight");
  Recipe part = recipe(words);
  part.train.max_steps = 3;
  run(part, "run");
  folder_.write("words.txt", "<unk>\n<eos>\nold\nsea\n");
  run(recipe(words), "run");
  expect_equal(left("run"), left("straight"), "another vocabulary file");
}

TEST_F(ChangedData, CheckpointsWithoutARecordAreUsable) {
  run(recipe({"train.max_steps=3", "checkpoint.best=none"}), "run");
  const std::string path = CheckpointStore(out("run")).path_of(3);
  const Checkpoint checkpoint = load_checkpoint(path);
  JsonValue older = JsonValue::object();
  for (const JsonMember& member : checkpoint.metadata.members()) {
    if (member.key != "data") older.set(member.key, member.value);
  }
  write_checkpoint_files(path, 3, checkpoint.files, older);
  folder_.write("valid1.txt", test::some_text(200, 8));
  EXPECT_EQ(compared("run").data, "not recorded");
  EXPECT_EQ(run(recipe({"checkpoint.best=none"}), "run").progress.step, 7);
  EXPECT_EQ(compared("run").data, "unchanged");
}

}  // namespace
}  // namespace linnet
