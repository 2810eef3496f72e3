// What a dry run tells of memory, beside what the run then takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/device.h"
#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

class PeakMemoryOfRuns : public test::RowKinds {
 protected:
  PeakMemory told(const Recipe& recipe) const {
    reset_peak_memory({});
    TrainOptions options;
    options.out = out("dry");
    options.dry_run = true;
    const TrainOutcome outcome = train(recipe, options);
    return outcome.dry_run.value_or(DryRun{}).peak;
  }
  int64_t taken(const Recipe& recipe, const std::string& name) const {
    reset_peak_memory({});
    run(recipe, name);
    return static_cast<int64_t>(peak_allocated_bytes({}));
  }
};

TEST_F(PeakMemoryOfRuns, IsToldByADryRun) {
  std::vector<std::pair<std::string, Recipe>> recipes = row_kinds();
  const auto add = [&](const std::string& name, const Recipe& recipe) {
    recipes.emplace_back(name, recipe);
  };
  add("linear", recipe());
  add("softmax", recipe({"model.attention={name: softmax}", "train.recompute=block"}));
  add("lavo",
      recipe({"model.attention={name: lavo, rank: 4, window: 4}", "optim.ema={decay: 0.9}"}));
  add("adaptive",
      recipe({"model.embedding=adaptive", "model.cutoffs=[101, 115]", "model.cutoff_factor=2"}));
  add("bf16", recipe({"train.precision=bf16"}));
  add("t5", texts({"model={kind: encoder_decoder, layers: 2, width: 8, heads: 2, "
                   "attention: {name: softmax}, cross_attention: {name: linear}}"}));
  // Whose evaluation takes the most.
  add("evaluation", recipe({"train.micro_batch=1", "evaluate.batch=24"}));
  add("long evaluation", texts({"train.examples_per_update=1", "evaluate.batch=20"}));
  for (const auto& [name, recipe] : recipes) {
    const auto expected = static_cast<double>(taken(recipe, name));
    const PeakMemory peak = told(recipe);
    EXPECT_NEAR(static_cast<double>(peak.tensors), expected, 0.15 * expected) << name;
    EXPECT_GE(peak.resident, peak.tensors) << name;
    EXPECT_FALSE(exists(out("dry"))) << name;
  }
}

// The first rows are short, the last one is 24 times as long.
TEST_F(PeakMemoryOfRuns, IsThatOfTheLongestRows) {
  std::string table = "text\tlabel\n";
  for (int i = 0; i < 41; ++i)
    table += concat(std::string(i == 40 ? 48 : 2, 'a'), i % 2 == 0 ? "\tgood\n" : "\tbad\n");
  folder_.write("rows/train.tsv", table);
  folder_.write("rows/dev.tsv", "text\tlabel\nab\tgood\nba\tbad\n");
  const Recipe recipe = classifier(
      {concat("data={kind: tsv, path: ", folder_ / "rows", ", lengths: like, context: 48}"),
       "train={max_epochs: 2, examples_per_update: 2, micro_batch: 2}",
       "model.feed_forward_width=256"});
  const PeakMemory epoch = told(recipe);
  const auto expected = static_cast<double>(taken(recipe, "epochs"));
  EXPECT_NEAR(static_cast<double>(epoch.tensors), expected, 0.15 * expected);
}

}  // namespace
}  // namespace linnet
