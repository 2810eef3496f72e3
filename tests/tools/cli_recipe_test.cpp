// The program on recipes: points of a sweep, what check finds, what list and schema show.
#include "core/json.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Cli;
using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST_F(Cli, TrainsOnePointOfASweep) {
  folder_.write("swept.yaml",
                "extends: tiny.yaml\nname: swept\n"
                "sweep:\n  model.attention: [{name: softmax}, {name: relu}]\n");
  expect_error(
      {"train", "swept.yaml"}, 2,
      "choose a point with --point LABEL, or give what it sweeps as key=value, or "
      "sweep=null for the recipe itself; the labels: 'attention=softmax', 'attention=relu'");
  expect_error({"train", "swept.yaml", "--point", "attention=rel"}, 2,
               "did you mean 'attention=relu'?");
  expect_error({"train", "tiny.yaml", "--point", "attention=relu"}, 2, "--point attention=relu");
  EXPECT_FALSE(exists(folder_ / "runs"));

  const Outcome point = linnet({"train", "swept.yaml", "--point", "attention=relu"});
  EXPECT_EQ(point.code, 0) << point.err;
  EXPECT_THAT(point.err, AllOf(HasSubstr("point of the sweep: attention=relu"),
                               HasSubstr("attention: {name: relu")));
  const std::string recipe = read_file(folder_ / "runs/swept/attention=relu/recipe.yaml");
  EXPECT_THAT(recipe, AllOf(HasSubstr("name: relu"), Not(HasSubstr("sweep"))));
  const Outcome other = linnet({"train", "swept.yaml", "--point", "attention=softmax"});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(linnet({"train", "swept.yaml", "--point", "attention=relu"}).err,
              HasSubstr("runs/swept/attention=relu is finished"));
  const Outcome chosen =
      linnet({"train", "swept.yaml", "model.attention={name: linear}", "--out", "run"});
  EXPECT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_THAT(read_file(folder_ / "run/recipe.yaml"), HasSubstr("name: linear"));
}

// Earlier versions trained the recipe itself and kept the sweep beside it.
TEST_F(Cli, ResumesARunWhoseRecipeHasASweep) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "old"}).code, 0);
  folder_.write("old/recipe.yaml",
                read_file(folder_ / "old/recipe.yaml") + "sweep: {optim.lr: [0.1, 0.2]}\n");
  expect_error({"train", "old/recipe.yaml"}, 2, "is a sweep of 2 points");
  const Outcome resumed =
      linnet({"train", "old/recipe.yaml", "train.max_steps=6", "--resume", "old"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("step 6/6"));
}

TEST_F(Cli, ShowsOnePointOfASweep) {
  folder_.write("swept.yaml", "extends: tiny.yaml\nsweep: {optim.lr: [0.25, 0.5]}\n");
  EXPECT_THAT(linnet({"recipe", "show", "swept.yaml"}).out,
              AllOf(HasSubstr("lr: 0.01"), HasSubstr("sweep")));
  for (const Outcome& shown : {linnet({"recipe", "show", "swept.yaml", "--point", "lr=0.5"}),
                               linnet({"recipe", "show", "swept.yaml", "optim.lr=0.5"})}) {
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_THAT(shown.out, AllOf(HasSubstr("lr: 0.5"), Not(HasSubstr("sweep"))));
  }
}

TEST_F(Cli, BenchmarksWhatAnOverrideChooses) {
  folder_.write("swept.yaml",
                "extends: tiny.yaml\n"
                "sweep:\n  model.attention: [{name: softmax}, {name: relu}]\n  seed: [1, 2]\n");
  const Outcome timed = linnet(
      {"bench", "train", "swept.yaml", "model.attention={name: linear}", "--steps", "1", "--json"});
  ASSERT_EQ(timed.code, 0) << timed.err;
  const JsonValue result = parse_json(timed.out, "stdout");
  ASSERT_EQ(result.at("points").elements().size(), 2u);
  EXPECT_EQ(result.at("points").elements()[1].at("point").text(), "seed=2");
}

TEST_F(Cli, ListsRecipesWithoutADescription) {
  folder_.write("mine/base.yaml", "seed: 1\n");
  folder_.write("mine/top.yaml", "extends: base.yaml\ndescription: On top\n");
  folder_.write("mine/up.yaml", "extends: base.yaml\ndescription: \"\\e[2J up\"\n");
  folder_.write("mine/list.yaml", "- 1\n");
  EXPECT_THAT(
      linnet({"recipe", "list", "mine"}).out,
      AllOf(HasSubstr("mine/base.yaml  (no description)\n"), HasSubstr("mine/top.yaml   On top\n"),
            HasSubstr("mine/list.yaml  UNREADABLE: "), HasSubstr("mine/up.yaml    \\x1b[2J up\n")));
}

TEST_F(Cli, ExplainsSingleKeysOfARecipe) {
  EXPECT_THAT(linnet({"recipe", "schema", "sweep"}).out,
              AllOf(testing::StartsWith("sweep "), HasSubstr("--point")));
  EXPECT_THAT(linnet({"recipe", "schema", "optim.lr"}).out,
              AllOf(testing::StartsWith("lr "), HasSubstr("above 0, required")));
  expect_error({"recipe", "schema", "sweep.x"}, 2, "'sweep' holds no keys");
}

TEST_F(Cli, ChecksWhatTrainRefuses) {
  const std::string schedule = "optim.schedule={kind: cosine, warmup_steps: 9}";
  const std::string why =
      "the schedule's 4 steps must be more than its 9 warmup_steps: lower these";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"recipe", "check", "tiny.yaml"}, {"train", "tiny.yaml"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back(schedule);
    expect_error(arguments, 2, "command line: optim.schedule: " + why);
  }
  EXPECT_EQ(linnet({"recipe", "check", "tiny.yaml"}).out, "tiny.yaml: ok\n");
  // Data may be elsewhere: then it says so, and how to have them.
  std::vector<std::string> elsewhere = {"recipe", "check", "tiny.yaml", "data.path=nowhere"};
  expect_error(elsewhere, 1, "'nowhere'");
  expect_error(elsewhere, 1, "--allow-missing-data");
  expect_error({"train", "tiny.yaml", "data.path=nowhere"}, 1, "'nowhere'");
  elsewhere.emplace_back("--allow-missing-data");
  const Outcome unread = linnet(elsewhere);
  EXPECT_EQ(unread.code, 0);
  EXPECT_THAT(unread.out, AllOf(testing::StartsWith("tiny.yaml: ok, but not checked with its data"),
                                HasSubstr("'nowhere'")));
  elsewhere.emplace_back("init={from: no_model, map: bert}");
  EXPECT_EQ(linnet(elsewhere).out, concat(unread.out.substr(0, unread.out.size() - 1),
                                          ", but not checked with the model it begins from: "
                                          "init.from: there is no 'no_model'\n"));
  expect_error({"recipe", "check", "tiny.yaml", "init={from: no_model, map: bert}"}, 2, "no_model");
  folder_.write("other.yaml", "extends: tiny.yaml\noptim: {lr: -1}\n");
  EXPECT_EQ(linnet({"recipe", "check", "other.yaml", "tiny.yaml", "data.path=nowhere"}).code, 2);
}

}  // namespace
}  // namespace linnet
