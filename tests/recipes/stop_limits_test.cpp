// Which limit ends a run, in which words, and how long it still takes.
#include "recipes/engine/stop_limits.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

Progress at(int64_t step, int64_t tokens, double seconds) {
  Progress progress;
  progress.step = step;
  progress.tokens = tokens;
  progress.seconds = seconds;
  return progress;
}

TEST(StopLimits, NamesTheLimitThatWasReached) {
  TrainConfig config;
  config.max_steps = 600;
  config.max_tokens = 1000000;
  config.max_minutes = 3.5;
  config.max_epochs = 2;
  const StopLimits limits(config, 1000, 32);  // 62.5 updates
  EXPECT_EQ(limits.last_step(), 63);
  EXPECT_EQ(limits.names_of_reached(at(62, 999999, 209.9)), "");
  EXPECT_FALSE(limits.reached(at(62, 999999, 209.9)));
  EXPECT_EQ(limits.names_of_reached(at(63, 0, 0)), "train.max_epochs 2");
  EXPECT_EQ(limits.names_of_reached(at(1, 1000000, 0)), "train.max_tokens 1000000");
  EXPECT_EQ(limits.names_of_reached(at(1, 1, 210)), "train.max_minutes 3.5");
  EXPECT_EQ(limits.names_of_reached(at(600, 1, 210)),
            "train.max_steps 600 and train.max_minutes 3.5 and train.max_epochs 2");
  EXPECT_TRUE(limits.reached(at(600, 1, 210)));
  EXPECT_EQ(limits.text(),
            "train.max_steps 600 or train.max_tokens 1000000 or train.max_minutes 3.5 or "
            "train.max_epochs 2 (63 updates)");
}

TEST(StopLimits, TheFirstLimitSaysHowLongItTakes) {
  TrainConfig config;
  config.max_steps = 100;
  config.max_minutes = 1;
  const StopLimits limits(config, 1000, 32);
  EXPECT_EQ(limits.last_step(), 100);
  EXPECT_EQ(limits.seconds_left(at(0, 0, 0)), 0);
  EXPECT_DOUBLE_EQ(limits.seconds_left(at(50, 0, 10)), 10);  // half of the steps
  EXPECT_DOUBLE_EQ(limits.seconds_left(at(50, 0, 45)), 15);  // three quarters of the minute
  config.max_steps.reset();
  config.max_minutes.reset();
  config.max_tokens = 1000;
  EXPECT_FALSE(StopLimits(config, 1000, 32).last_step().has_value());
  EXPECT_DOUBLE_EQ(StopLimits(config, 1000, 32).seconds_left(at(7, 250, 10)), 30);
}

}  // namespace
}  // namespace linnet
