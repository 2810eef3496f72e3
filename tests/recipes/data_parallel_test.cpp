// One process or many: the same order of examples, the same losses, the same scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/recipes/data_parallel.h"

namespace linnet {
namespace {

using test::is_rank;
using test::pass_on_ranks;
using testing::HasSubstr;

class DataParallelTraining : public test::DataParallel {
 protected:
  // Trains the recipes, by name, on one process, on two and on four.
  void compare(const std::vector<std::pair<std::string, Recipe>>& recipes) const {
    if (!is_rank()) {
      for (const auto& [name, recipe] : recipes) run(recipe, name + "-1");
    }
    for (const int size : {2, 4}) {
      pass_on_ranks(size, [&](Communicator& ranks) {
        for (const auto& [name, recipe] : recipes) {
          const TrainOutcome outcome = train_on(ranks, recipe, concat(name, "-", size));
          EXPECT_EQ(outcome.progress.step, *recipe.train.max_steps) << name;
        }
      });
      if (is_rank()) continue;
      for (const auto& [name, recipe] : recipes) {
        expect_same_metrics(name + "-1", concat(name, "-", size));
      }
    }
  }
};

TEST_F(DataParallelTraining, DecodersTrainAsOnOneProcess) {
  std::vector<std::pair<std::string, Recipe>> recipes;
  for (const char* attention : {"softmax", "lavo", "linear", "abc_mlp", "s4d"}) {
    recipes.emplace_back(
        attention,
        decoder({concat("model.attention={name: ", attention, "}"), "model.dropout=0.1",
                 "train.max_steps=50", "train.tokens_per_update=128", "train.micro_batch=1",
                 "optim.ema={decay: 0.9, warmup: true}", "evaluate.every_steps=25"}));
  }
  compare(recipes);
}

TEST_F(DataParallelTraining, ClassifiersTrainAsOnOneProcess) {
  compare({{"listops", classifier({"model.dropout=0.1", "train.max_steps=50", "train.micro_batch=2",
                                   "optim.ema={decay: 0.9, warmup: true}", "optim.clip_norm=0.5",
                                   "evaluate.every_steps=25"})}});
}

// Each continues with the checkpoint of the one before.
TEST_F(DataParallelTraining, AnotherNumberOfProcessesContinues) {
  const auto until = [this](int64_t steps) {
    return decoder({concat("train.max_steps=", steps), "model.dropout=0.1",
                    "train.tokens_per_update=128", "train.micro_batch=2",
                    "optim.schedule={kind: cosine, warmup_steps: 2, steps: 30}",
                    "optim.ema={decay: 0.9, warmup: true}"});
  };
  if (!is_rank()) {
    run(until(30), "straight");
    run(until(10), "continued");
  }
  for (const auto& [size, steps] : {std::pair(2, 20), {4, 30}}) {
    pass_on_ranks(size, [&, steps = steps](Communicator& ranks) {
      train_on(ranks, until(steps), "continued");
    });
  }
  if (!is_rank()) expect_same_metrics("straight", "continued");
}

TEST_F(DataParallelTraining, TwoProcessesContinueBitForBit) {
  const auto until = [this](int64_t steps) {
    return decoder({concat("train.max_steps=", steps), "model.dropout=0.1",
                    "train.tokens_per_update=128", "train.micro_batch=2"});
  };
  pass_on_ranks(2, [&](Communicator& ranks) {
    train_on(ranks, until(9), "straight");
    train_on(ranks, until(4), "cut");
    train_on(ranks, until(9), "cut");
  });
  if (!is_rank()) expect_equal(left("straight"), left("cut"), "two processes");
}

}  // namespace
}  // namespace linnet
