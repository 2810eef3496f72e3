// What a run says of itself agrees wherever it says it: parameters, time, memory; the names in its
// metrics are documented, and mean one thing each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/hdf5.h"
#include "core/log.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/report.h"
#include "tests/data_path.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;
using testing::Not;

class RunFacts : public test::TinyRun {
 protected:
  std::vector<JsonValue> lines(const std::string& name) const {
    std::vector<JsonValue> result;
    const std::string path = join_path(out(name), "metrics.jsonl"), text = read_file(path);
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      result.push_back(parse_json(text.substr(begin, text.find('\n', begin) - begin), path));
    }
    return result;
  }
  // The log of a run named "run".
  std::string logged(const Recipe& recipe) const {
    set_log_level(LogLevel::info);
    testing::internal::CaptureStderr();
    run(recipe, "run");
    set_log_level(LogLevel::error);
    return testing::internal::GetCapturedStderr();
  }
  JsonValue last_update(const std::string& name) const {
    JsonValue last;
    for (const JsonValue& line : lines(name)) {
      if (line.at("kind").text() == "train") last = line;
    }
    return last;
  }
  Checkpoint newest(const std::string& name) const {
    return load_checkpoint(CheckpointStore(out(name)).newest_valid().path.value());
  }
};

TEST_F(RunFacts, ParametersAreCountedAlikeEverywhere) {
  // With tied tables, and a basis that is drawn and never trained.
  const Recipe drawn = recipe(
      {"model.attention={name: lavo, rank: 4, basis_train: frozen}", "evaluate.at_end=true"});
  const std::string log = logged(drawn);
  const Checkpoint checkpoint = newest("run");
  const int64_t parameters = checkpoint.metadata.at("parameters").integer();
  const int64_t untrained = checkpoint.metadata.at("untrained").integer();
  EXPECT_GT(untrained, 0);
  int64_t stored = 0;
  for (const auto& [name, tensor] :
       tensors_from_hdf5(checkpoint.files.at("weights.h5"), "weights")) {
    stored += tensor.elements();
  }
  EXPECT_EQ(stored, parameters + untrained);
  EXPECT_EQ(last_update("run").at("parameters").integer(), parameters);
  EXPECT_EQ(evaluate(out("run"), {}).parameters, parameters);
  EXPECT_THAT(log, HasSubstr(concat(": ", parameters, " parameters, and ", untrained, " drawn")));
  EXPECT_EQ(read_run(out("run")).parameters, parameters);
  EXPECT_THAT(read_file(join_path(out("run"), "report.html")),
              HasSubstr(concat(">", parameters, " parameters; wall time ")));
}

TEST_F(RunFacts, EveryNameOfALineIsDocumentedAndMeansOneThing) {
  run(recipe({"evaluate.every_steps=2", "model.attention={name: t2r, features: 1}"}), "windows");
  run(recipe({"evaluate.every_steps=2", "evaluate.carry_state=true"}), "streaming");
  run(classifier(), "classifier");
  // Rows of the table: | `name`, `name` | kind | meaning |.
  const std::string table = read_file(join_path(test::source_dir(), "recipes/engine/README.md"));
  const size_t first_row = table.find("\n|---|", table.find("## The lines of metrics.jsonl"));
  std::map<std::string, std::set<std::string>> kinds_of;
  for (const char* name : {"windows", "streaming", "classifier"}) {
    for (const JsonValue& line : lines(name)) {
      const std::string kind = line.at("kind").text();
      for (const JsonMember& member : line.members()) kinds_of[member.key].insert(kind);
    }
  }
  for (const auto& [key, kinds] : kinds_of) {
    const size_t at = table.find(concat("`", key, "`"), first_row);
    ASSERT_NE(at, std::string::npos) << key;
    const size_t begin = table.rfind('\n', at) + 1;
    const std::string row = table.substr(begin, table.find('\n', begin) - begin);
    const std::string kind = kinds.size() > 1 ? "both" : *kinds.begin();
    EXPECT_THAT(row, AllOf(testing::StartsWith("| `"), HasSubstr(concat(" | ", kind, " | "))))
        << key;
    EXPECT_TRUE(kinds.size() == 1 || key == "kind" || key == "step" || key == "wall_seconds")
        << key;
  }
  for (const char* key : {"tokens", "scored_tokens", "chunk", "stride", "dead_rows",
                          "scored_examples", "accuracy", "scoring_seconds", "state_bytes"}) {
    EXPECT_TRUE(kinds_of.contains(key)) << key;
  }
}

TEST_F(RunFacts, TheLogAndTheMetricsNameTheSameMemory) {
  const std::string log = logged(recipe());
  const JsonValue line = last_update("run");
  const int64_t resident = line.at("peak_resident_bytes").integer();
  EXPECT_GT(resident, line.at("peak_tensor_bytes").integer());
  EXPECT_GT(line.at("resident_bytes").integer(), line.at("peak_tensor_bytes").integer());
  EXPECT_THAT(log, HasSubstr(concat("  ", resident / 1'000'000, " MB\n")));
}

TEST_F(RunFacts, WallTimeHoldsAllOtherTimesAndGoesOnWhenTheRunDoes) {
  const auto evaluating = [&](int steps) {
    return recipe({"evaluate.every_steps=1", concat("train.max_steps=", steps)});
  };
  run(evaluating(3), "run");
  const double wall = newest("run").metadata.at("wall_seconds").number();
  double scoring = 0;
  for (const JsonValue& line : lines("run")) {
    if (line.at("kind").text() == "evaluation") scoring += line.at("scoring_seconds").number();
  }
  EXPECT_GT(scoring, 0);
  EXPECT_EQ(read_run(out("run")).wall_seconds, wall);
  EXPECT_GE(wall, newest("run").metadata.at("seconds").number() + scoring);
  run(evaluating(5), "run");
  const std::vector<JsonValue> all = lines("run");
  double before = 0;
  for (const JsonValue& line : all) {
    EXPECT_GT(line.at("wall_seconds").number(), before);
    const JsonValue* updates = line.find("seconds");
    EXPECT_GE(line.at("wall_seconds").number(), updates == nullptr ? 0 : updates->number());
    before = line.at("wall_seconds").number();
    if (line.at("step").integer() <= 3) continue;
    EXPECT_GT(before, wall);
  }
}

TEST_F(RunFacts, AClassifiersPageHasNoContext) {
  run(classifier(), "run");
  const std::string html = read_file(join_path(out("run"), "report.html"));
  EXPECT_THAT(html.substr(0, html.find("How it was made")), Not(HasSubstr("context")));
  EXPECT_EQ(read_run(out("run")).evaluations.at(0).scored.text(), "");
}

// Without `kind`, and with the names of then.
TEST_F(RunFacts, RunsOfEarlierVersionsAreReported) {
  const std::string folder = join_path(test::source_dir(), "tests/recipes/compatibility");
  for (const char* name : {"lavo_bytes", "luna_listops", "softmax_words"}) {
    const RunData run = read_run(join_path(folder, name));
    EXPECT_THAT(run.problems, testing::IsEmpty()) << name;
    EXPECT_EQ(run.loss.size(), 6U) << name;
    ASSERT_EQ(run.evaluations.size(), 1U) << name;
    EXPECT_EQ(run.evaluations[0].nll.size(), 1U) << name;
    EXPECT_GT(run.peak_tensor_bytes, 0) << name;
    EXPECT_EQ(run.parameters, 0) << name;
    EXPECT_THAT(report_text({run}), AllOf(HasSubstr("peak tensors"), Not(HasSubstr("parameters"))));
  }
}

}  // namespace
}  // namespace linnet
