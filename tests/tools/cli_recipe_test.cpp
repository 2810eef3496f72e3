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
  expect_error({"train", "swept.yaml"}, 2,
               "choose a point with --point LABEL, or give what it sweeps as key=value; the "
               "labels: 'attention=softmax', 'attention=relu'");
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

}  // namespace
}  // namespace linnet
