// One update: how it is cut, recomputed or stored changes nothing but rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>

#include "attention/registry.h"
#include "core/files.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/run_sample.h"
#include "recipes/engine/train_step.h"
#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class TrainStepTest : public test::RowKinds {
 protected:
  struct Updates {
    std::vector<UpdateResult> results;
    std::vector<float> weights;
    Progress progress;
  };
  static Updates updates(const Recipe& recipe, int64_t count) {
    const std::unique_ptr<Task> task = make_task(recipe);
    const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
    Updater updater = make_updater(recipe, model->parameters());
    TrainStep step(recipe, *task, *model, updater);
    Updates done;
    int64_t next = 0;
    size_t part = 0;
    const auto next_batch = [&] {
      const int64_t rows = step.micro_batches()[part++ % step.micro_batches().size()].count;
      next += rows;
      return task->train_batch(next - rows, rows);
    };
    for (int64_t i = 0; i < count; ++i) done.results.push_back(step.run(done.progress, next_batch));
    done.weights = model->parameters().weights().to_vector<float>();
    return done;
  }
};

TEST_F(TrainStepTest, MicroBatchesChangeRoundingOnly) {
  // Plain descent shows the gradient itself in the weights. Documents end inside windows, so that
  // rows differ in how many targets they score.
  const std::vector<std::string> plain = {"optim={kind: sgd, lr: 0.5}"};
  const auto with_micro_batch = [&](int64_t size) {
    return updates(recipe({plain[0], concat("train.micro_batch=", size)}), 3);
  };
  const Updates whole = with_micro_batch(6);
  EXPECT_LT(whole.results[0].targets, 96);
  for (const int64_t size : {1, 2, 4, 5, 100}) {
    const Updates cut = with_micro_batch(size);
    for (size_t i = 0; i < whole.results.size(); ++i) {
      EXPECT_EQ(cut.results[i].targets, whole.results[i].targets);
      EXPECT_NEAR(cut.results[i].loss, whole.results[i].loss, 1e-6 * whole.results[i].loss);
      EXPECT_NEAR(cut.results[i].gradient_norm, whole.results[i].gradient_norm,
                  1e-5 * whole.results[i].gradient_norm);
    }
    ASSERT_EQ(cut.weights.size(), whole.weights.size());
    for (size_t i = 0; i < cut.weights.size(); ++i) {
      ASSERT_NEAR(cut.weights[i], whole.weights[i], 1e-5) << "micro-batch " << size << ", " << i;
    }
  }
}

TEST_F(TrainStepTest, WeightsThatGiveNoNumbersGiveNoSample) {
  const Recipe sampled = recipe({"generate.tokens=3"});
  const std::unique_ptr<Task> task = make_task(sampled);
  const std::unique_ptr<Transformer> model = build_model(sampled, task->sizes());
  Updater updater = make_updater(sampled, model->parameters());
  const TrainParts parts{sampled, *task, *model, updater};
  write_sample(parts, folder_.path());
  EXPECT_TRUE(exists(folder_ / "sample.txt"));
  file_system().remove(folder_ / "sample.txt");
  model->parameters().weights().fill(std::nan(""));
  model->parameters().refresh_values();
  EXPECT_NO_THROW(write_sample(parts, folder_.path()));
  EXPECT_FALSE(exists(folder_ / "sample.txt"));
}

TEST_F(TrainStepTest, AStopBetweenMicroBatchesChangesNothing) {
  const Recipe small = recipe({"train.micro_batch=1"});
  const std::unique_ptr<Task> task = make_task(small);
  const std::unique_ptr<Transformer> model = build_model(small, task->sizes());
  Updater updater = make_updater(small, model->parameters());
  TrainStep step(small, *task, *model, updater);
  ASSERT_GT(step.micro_batches().size(), 3U);
  const Tensor weights = model->parameters().weights();
  const std::vector<float> before = weights.to_vector<float>();
  Progress progress;
  int64_t taken = 0;
  const auto next_batch = [&] {
    if (taken == 3) request_stop(SIGTERM);
    return task->train_batch(taken++, 1);
  };
  {
    const HoldStop hold;
    EXPECT_THROW(step.run(progress, next_batch), Interrupted);
  }
  clear_stop_signal();
  EXPECT_EQ(taken, 4) << "the batch that was taken was not computed";
  EXPECT_EQ(progress.step, 0);
  EXPECT_EQ(progress.examples, 0);
  EXPECT_EQ(weights.to_vector<float>(), before);
}

TEST_F(TrainStepTest, AStopBetweenMicroBatchesLeavesRunningStatistics) {
  const Recipe small =
      classifier({"train.micro_batch=1", "model.attention={name: transnormer_norm, norm: batch}"});
  const std::unique_ptr<Task> task = make_task(small);
  const std::unique_ptr<Transformer> model = build_model(small, task->sizes());
  Updater updater = make_updater(small, model->parameters());
  const Tensor mean = model->parameters().tensors().at("layers.0.attention.norm.mean");
  const Tensor variance = model->parameters().tensors().at("layers.0.attention.norm.variance");
  const std::vector<float> means = mean.to_vector<float>();
  const std::vector<float> variances = variance.to_vector<float>();
  Progress progress;
  int64_t taken = 0;
  const auto update = [&](int64_t stop_at) {
    taken = 0;
    TrainStep(small, *task, *model, updater).run(progress, [&] {
      if (taken == stop_at) {
        EXPECT_NE(mean.to_vector<float>(), means) << "the batches before moved them";
        request_stop(SIGTERM);
      }
      return task->train_batch(taken++, 1);
    });
  };
  {
    const HoldStop hold;
    EXPECT_THROW(update(3), Interrupted);
  }
  clear_stop_signal();
  EXPECT_EQ(mean.to_vector<float>(), means);
  EXPECT_EQ(variance.to_vector<float>(), variances);
  update(-1);
  EXPECT_NE(mean.to_vector<float>(), means);
  EXPECT_NE(variance.to_vector<float>(), variances);
}

TEST_F(TrainStepTest, LossIsTheMeanOverScoredTargets) {
  const Recipe small = recipe({"optim={kind: sgd, lr: 1e-9}", "train.micro_batch=1"});
  const std::unique_ptr<Task> task = make_task(small);
  const std::unique_ptr<Transformer> model = build_model(small, task->sizes());
  double sum = 0;
  int64_t targets = 0;
  for (int64_t i = 0; i < 6; ++i) {
    const Batch batch = task->train_batch(i, 1);
    sum += task->loss(*model, DeviceBatch(batch, {})).value().item();
    for (const int32_t target : batch.targets) targets += target == kNotScored ? 0 : 1;
  }
  const UpdateResult result = updates(small, 1).results[0];
  EXPECT_EQ(result.targets, targets);
  EXPECT_NEAR(result.loss, sum / static_cast<double>(targets), 1e-9);
}

TEST_F(TrainStepTest, RecomputingBlocksGivesTheSameBits) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    for (const bool decoder : {true, false}) {
      if (!test::small_traits(mechanism).has(decoder ? Form::causal : Form::noncausal)) continue;
      const std::vector<std::string> changes = {test::small_attention(mechanism), "model.width=16",
                                                "model.dropout=0.2", "model.layers=2"};
      const Recipe kept = decoder ? recipe(changes) : classifier(changes);
      Recipe recomputed = kept;
      recomputed.train.recompute = Recompute::block;
      const Updates a = updates(kept, 3), b = updates(recomputed, 3);
      EXPECT_TRUE(a.weights == b.weights) << mechanism.name << (decoder ? " causal" : " noncausal");
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a.results[i].loss, b.results[i].loss);
      ++checked;
    }
  }
  EXPECT_GE(checked, 3);
}

// And whatever the trunk is, and the head.
TEST_F(TrainStepTest, RecomputingUnderEveryHeadGivesTheSameBits) {
  const std::string pooled = "model.head=pooler", softmax = "model.attention={name: softmax}";
  const std::vector<std::pair<std::string, Recipe>> models = {
      {"adaptive", recipe({"model.embedding=adaptive", "model.cutoffs=[101, 115]",
                           "model.cutoff_factor=2", "model.head_dropout=0.2"})},
      {"untied", recipe({"model.tie_embeddings=false", softmax, "model.kv_heads=1"})},
      {"masked_lm", masked({"model.token_types=2"})},
      {"pooler", texts({pooled, "model.norm_position=post", "model.embedding_norm=true",
                        "model.positions=learned", "model.position_offset=2"})},
      {"last_token",
       texts({"model={kind: decoder, layers: 2, width: 8, heads: 2, head: last_token, "
              "attention: {name: linear}}"})},
      {"lra of pairs", pairs()},
      {"t5", texts({"model={kind: encoder_decoder, layers: 2, width: 8, heads: 2, norm: rms, bias: "
                    "false, attention: {name: softmax, preset: t5}}"})}};
  for (const auto& [name, model] : models) {
    Recipe kept = model;
    kept.model.dropout = 0.2;
    Recipe recomputed = kept;
    recomputed.train.recompute = Recompute::block;
    const Updates a = updates(kept, 3), b = updates(recomputed, 3);
    EXPECT_TRUE(a.weights == b.weights) << name;
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a.results[i].loss, b.results[i].loss) << name;
  }
}

// Language models where there is a causal form, classifiers elsewhere.
TEST_F(TrainStepTest, EveryMechanismLowersItsLoss) {
  const auto mean_loss = [](const std::vector<UpdateResult>& results, size_t begin) {
    double sum = 0;
    for (size_t i = begin; i < begin + 5; ++i) sum += results[i].loss;
    return sum / 5;
  };
  for (const Mechanism& mechanism : mechanisms()) {
    const std::vector<std::string> changes = {test::small_attention(mechanism), "model.width=16"};
    const bool decoder = test::small_traits(mechanism).has(Form::causal);
    const auto results = updates(decoder ? recipe(changes) : classifier(changes), 40).results;
    EXPECT_TRUE(mean_loss(results, 35) < 0.9 * mean_loss(results, 0))
        << mechanism.name << ": " << mean_loss(results, 0) << " to " << mean_loss(results, 35);
  }
}

TEST_F(TrainStepTest, Bf16FollowsF32) {
  const auto losses = [&](const std::string& precision) {
    return updates(recipe({"train.precision=" + precision, "model.width=16"}), 60).results;
  };
  const auto f32 = losses("f32"), bf16 = losses("bf16");
  EXPECT_LT(f32.back().loss, 0.65 * f32.front().loss);
  EXPECT_LT(bf16.back().loss, 0.65 * bf16.front().loss);
  EXPECT_NEAR(bf16.back().loss, f32.back().loss, 0.05 * f32.back().loss);
  EXPECT_NE(bf16.back().loss, f32.back().loss);
}

TEST_F(TrainStepTest, ClassifiersCountTheirTokens) {
  const Recipe small = classifier();
  const UpdateResult result = updates(small, 1).results[0];
  EXPECT_EQ(result.targets, 12);
  EXPECT_GE(result.tokens, 12 * 3);   // min_length
  EXPECT_LE(result.tokens, 12 * 16);  // padded
}

TEST_F(TrainStepTest, DivergenceSkipsThenStopsAndKeepsTheCheckpoint) {
  const Recipe absurd = recipe({"optim.lr=1e30", "train.max_steps=50", "checkpoint.every_steps=1",
                                "train.max_nonfinite_steps=3", "evaluate.every_steps=0"});
  set_log_level(LogLevel::warning);
  testing::internal::CaptureStderr();
  const std::string message = test::message_of([&] { run(absurd, "run"); });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(message, HasSubstr("training diverged: 3 updates in a row"));
  EXPECT_THAT(message, HasSubstr("train again from the start with optim.lr=5e+29"));
  EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
  EXPECT_THAT(
      log,
      HasSubstr("update skipped, the gradient of embedding.weight (first: the output of layers.0"));
  const Left after = left("run");
  EXPECT_GE(after.step, 3);
  EXPECT_THAT(after.metrics.back(), HasSubstr("\"skipped\": 3"));
  // Continuing stops at once for the same reason rather than count again.
  EXPECT_THAT(test::message_of([&] { run(absurd, "run"); }), HasSubstr("updates in a row"));
  EXPECT_LE(left("run").step, after.step + 1);
  load_model(out("run"));
}

TEST_F(TrainStepTest, SkippedUpdatesLeaveTheWeightsAlone) {
  const Recipe absurd = recipe({"optim.lr=1e30"});
  const Updates two = updates(absurd, 2);
  EXPECT_FALSE(two.results[0].skipped);
  EXPECT_TRUE(two.results[1].skipped);
  EXPECT_EQ(two.results[1].non_finite_parameter, "embedding.weight");
  const Updates three = updates(absurd, 3);
  EXPECT_TRUE(three.weights == two.weights);
  EXPECT_EQ(three.progress.skipped, 2);
  EXPECT_EQ(three.progress.skipped_in_a_row, 2);
  EXPECT_EQ(three.progress.step, 3);
}

TEST_F(TrainStepTest, WhatTakingABatchThrowsIsThrownWhenItsTurnComes) {
  const Recipe recipe = this->recipe({"train.micro_batch=6"});
  const std::unique_ptr<Task> task = make_task(recipe);
  const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
  Updater updater = make_updater(recipe, model->parameters());
  TrainStep step(recipe, *task, *model, updater);
  Progress progress;
  int64_t taken = 0;
  const auto next_batch = [&] {
    if (taken == 2) throw Error("the file became shorter");
    return task->train_batch(6 * taken++, 6);
  };
  step.run(progress, next_batch);
  EXPECT_EQ(taken, 2);
  step.run(progress, next_batch);
  EXPECT_EQ(progress.step, 2);
  EXPECT_THAT([&] { step.run(progress, next_batch); },
              testing::ThrowsMessage<Error>(HasSubstr("became shorter")));
  EXPECT_EQ(progress.step, 2);
}

TEST_F(TrainStepTest, TokensPerUpdateMustBeWholeWindows) {
  EXPECT_THAT(
      test::message_of<UsageError>([&] { updates(recipe({"train.tokens_per_update=100"}), 1); }),
      HasSubstr("multiple of the 16 tokens of one example; use 96"));
}

}  // namespace
}  // namespace linnet
