// A run that ends before its schedule does says so.
#include <gmock/gmock.h>

#include "recipes/engine/run_summary.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class UnfinishedSchedule : public test::TinyRun {
 protected:
  static std::string sentence(const Recipe& recipe, int64_t step) {
    Progress progress;
    progress.step = step;
    progress.tokens = 96 * step;
    progress.seconds = 60.0 * static_cast<double>(step);
    return unfinished_schedule(recipe,
                               make_schedule(recipe.optim, recipe.train.max_steps.value_or(0)),
                               progress, StopLimits(recipe.train, 74, 6));
  }
  // What the run says beside its progress.
  std::string warnings(const Recipe& recipe, const std::string& name) const {
    set_log_level(LogLevel::warning);
    testing::internal::CaptureStderr();
    run(recipe, name);
    set_log_level(LogLevel::error);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(UnfinishedSchedule, IsNamedWithTheShareThatWasReached) {
  const Recipe timed = recipe({"optim.schedule={kind: cosine, warmup_steps: 2, end_lr: 0.002}",
                               "train.max_steps=16", "train.max_minutes=3"});
  EXPECT_THAT(sentence(timed, 3),
              AllOf(HasSubstr("train.max_minutes 3 ended the run at 18.8 % of its schedule"),
                    HasSubstr("(cosine, update 3 of 16)"), HasSubstr("come to 0.002;")));
  EXPECT_EQ(sentence(timed, 16), "");
  const Recipe counted =
      recipe({"optim.schedule={kind: linear, steps: 10}", "train.max_tokens=480"});
  EXPECT_THAT(sentence(counted, 5), HasSubstr("train.max_tokens 480 ended the run at 50 %"));
  // As many updates as were asked for; a schedule without an end.
  EXPECT_EQ(sentence(counted, 7), "");
  EXPECT_EQ(sentence(recipe({"optim.schedule={kind: inverse_sqrt, warmup_steps: 2}"}), 3), "");
}

TEST_F(UnfinishedSchedule, IsAWarningOfTheRun) {
  const std::vector<std::string> changes = {"optim.schedule={kind: cosine, steps: 10}",
                                            "train.max_steps=null", "evaluate.every_steps=0"};
  std::vector<std::string> timed = changes, whole = changes;
  timed.push_back("train.max_minutes=1e-9");
  whole.push_back("train.max_epochs=5");
  EXPECT_THAT(warnings(recipe(timed), "timed"),
              HasSubstr("train.max_minutes 1e-9 ended the run at 10 % of its schedule"));
  EXPECT_EQ(warnings(recipe(timed), "timed"), "") << "it was finished";
  EXPECT_EQ(warnings(recipe(whole), "whole"), "");
}

}  // namespace
}  // namespace linnet
