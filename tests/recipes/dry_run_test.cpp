// What a dry run tells of the tokens of the whole run.
#include <gtest/gtest.h>

#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

class DryRuns : public test::RowKinds {};

// Updates of like lengths differ by more than ten times: the first one alone tells little.
TEST_F(DryRuns, TellTokensOfUpdatesOfAllLengths) {
  for (const int seed : {1, 2, 3}) {
    const Recipe recipe = texts({"train={max_epochs: 8, examples_per_update: 2, micro_batch: 2}",
                                 "data.lengths=like", concat("seed=", seed)});
    TrainOptions options;
    options.out = out("dry");
    options.dry_run = true;
    const DryRun told = train(recipe, options).dry_run.value_or(DryRun{});
    const auto trained = static_cast<double>(run(recipe, concat("run", seed)).progress.tokens);
    EXPECT_NEAR(static_cast<double>(told.tokens), trained, 0.1 * trained) << "seed " << seed;
    EXPECT_FALSE(exists(out("dry")));
  }
}

}  // namespace
}  // namespace linnet
