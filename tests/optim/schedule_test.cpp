// Learning-rate schedules at points whose values follow from the published formulas.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace linnet {
namespace {

Schedule make(ScheduleKind kind, double lr, int64_t max_steps, ScheduleConfig config = {}) {
  config.kind = kind;
  return Schedule(config, lr, max_steps);
}

TEST(Schedule, WarmUpIsLinearFromItsInitialRate) {
  ScheduleConfig config;
  config.warmup_steps = 10;
  config.warmup_lr = 0.1;
  for (const ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::linear,
                                  ScheduleKind::cosine, ScheduleKind::inverse_sqrt}) {
    const Schedule schedule = make(kind, 1.1, 100, config);
    EXPECT_DOUBLE_EQ(schedule.lr(0), 0.1);
    EXPECT_DOUBLE_EQ(schedule.lr(5), 0.6);
    EXPECT_DOUBLE_EQ(schedule.lr(10), 1.1);
    EXPECT_FALSE(schedule.beta1(5).has_value());
  }
}

TEST(Schedule, ConstantStays) {
  const Schedule schedule = make(ScheduleKind::constant, 0.3, 0);
  EXPECT_DOUBLE_EQ(schedule.lr(0), 0.3);
  EXPECT_DOUBLE_EQ(schedule.lr(1000000), 0.3);
}

TEST(Schedule, LinearDecaysToItsEndAndStaysThere) {
  ScheduleConfig config;
  config.warmup_steps = 20;
  config.end_lr = 0.2;
  config.steps = 120;
  const Schedule schedule = make(ScheduleKind::linear, 1, 9999, config);
  EXPECT_DOUBLE_EQ(schedule.lr(70), 0.6);
  EXPECT_DOUBLE_EQ(schedule.lr(120), 0.2);
  EXPECT_DOUBLE_EQ(schedule.lr(5000), 0.2);
}

TEST(Schedule, CosineRunsOverMaxSteps) {
  ScheduleConfig config;
  config.end_lr = 0.1;
  const Schedule schedule = make(ScheduleKind::cosine, 1, 100, config);
  EXPECT_DOUBLE_EQ(schedule.lr(0), 1);
  EXPECT_DOUBLE_EQ(schedule.lr(50), 0.55);
  EXPECT_NEAR(schedule.lr(25), 0.1 + 0.45 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_DOUBLE_EQ(schedule.lr(100), 0.1);
}

// Adaptive-input language model: 16K warm-up from 1e-7, T_0 = 270K, growth 2, shrink 0.75.
TEST(Schedule, CosineCyclesGrowAndShrink) {
  ScheduleConfig config;
  config.warmup_steps = 16000;
  config.warmup_lr = 1e-7;
  config.end_lr = 1e-4;
  config.period_steps = 270000;
  const Schedule schedule = make(ScheduleKind::cosine_cycles, 1, 0, config);
  EXPECT_DOUBLE_EQ(schedule.lr(0), 1e-7);
  EXPECT_DOUBLE_EQ(schedule.lr(16000), 1);
  EXPECT_DOUBLE_EQ(schedule.lr(16000 + 135000), 0.5 * (1 + 1e-4));
  EXPECT_NEAR(schedule.lr(285999), 1e-4, 1e-9);
  EXPECT_DOUBLE_EQ(schedule.lr(286000), 0.75);                              // second cycle
  EXPECT_DOUBLE_EQ(schedule.lr(286000 + 270000), 0.75 * 0.5 * (1 + 1e-4));  // half of 540K
  EXPECT_DOUBLE_EQ(schedule.lr(286000 + 540000), 0.75 * 0.75);              // third
}

TEST(Schedule, CosineCyclesHoldTheFloorAfterTheLast) {
  ScheduleConfig config;
  config.warmup_steps = 8000;
  config.end_lr = 1e-4;
  config.period_steps = 140000;
  config.cycles = 1;
  const Schedule once = make(ScheduleKind::cosine_cycles, 1, 150000, config);
  EXPECT_NEAR(once.lr(147999), 1e-4, 1e-9);
  EXPECT_DOUBLE_EQ(once.lr(148000), 1e-4);
  EXPECT_DOUBLE_EQ(once.lr(149999), 1e-4);
  config.cycles = 2;
  const Schedule twice = make(ScheduleKind::cosine_cycles, 1, 150000, config);
  EXPECT_DOUBLE_EQ(twice.lr(148000), 0.75);
  EXPECT_DOUBLE_EQ(twice.lr(148000 + 280000), 0.75e-4);
}

// PG-19 language model: 5e-4 sqrt(1e4 / t) after 10K updates.
TEST(Schedule, InverseSquareRoot) {
  ScheduleConfig config;
  config.warmup_steps = 10000;
  config.warmup_lr = 1e-7;
  const Schedule schedule = make(ScheduleKind::inverse_sqrt, 5e-4, 0, config);
  EXPECT_DOUBLE_EQ(schedule.lr(10000), 5e-4);
  EXPECT_DOUBLE_EQ(schedule.lr(40000), 2.5e-4);
  EXPECT_NEAR(schedule.lr(125000), 5e-4 * std::sqrt(0.08), 1e-18);
}

// Tiny masked language model: 152K updates, the first 1 % rising to 1e-4.
TEST(Schedule, OneCycle) {
  ScheduleConfig config;
  config.warmup_steps = 1520;
  config.cycle_beta1 = true;
  const Schedule schedule = make(ScheduleKind::one_cycle, 1e-4, 152000, config);
  EXPECT_DOUBLE_EQ(schedule.lr(0), 4e-6);
  EXPECT_DOUBLE_EQ(schedule.lr(1519), 1e-4);
  EXPECT_NEAR(schedule.lr(151999), 4e-10, 1e-20);
  EXPECT_NEAR(schedule.lr(200000), 4e-10, 1e-20);
  EXPECT_NEAR(schedule.lr((1519 + 151999) / 2), 0.5 * (1e-4 + 4e-10), 1e-15);
  EXPECT_DOUBLE_EQ(*schedule.beta1(0), 0.95);
  EXPECT_DOUBLE_EQ(*schedule.beta1(1519), 0.85);
  EXPECT_DOUBLE_EQ(*schedule.beta1(151999), 0.95);
}

TEST(Schedule, OneCycleWithOneWarmUpStepStartsAtThePeak) {
  ScheduleConfig config;
  config.warmup_steps = 1;
  const Schedule schedule = make(ScheduleKind::one_cycle, 1, 11, config);
  EXPECT_DOUBLE_EQ(schedule.lr(0), 1);
  EXPECT_NEAR(schedule.lr(5), 0.5 * (1 + 4e-6), 1e-15);
}

TEST(Schedule, RefusesAScheduleWithoutALength) {
  EXPECT_THROW(make(ScheduleKind::linear, 1, 0), UsageError);
  ScheduleConfig config;
  config.warmup_steps = 100;
  EXPECT_THROW(make(ScheduleKind::cosine, 1, 100, config), UsageError);
  config.warmup_lr = 2;
  EXPECT_THROW(make(ScheduleKind::constant, 1, 100, config), UsageError);
}

}  // namespace
}  // namespace linnet
