// Updates that are replayed as CUDA graphs leave the bits of updates that are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "attention/registry.h"
#include "core/cuda/backend.h"
#include "core/files.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/train_step.h"
#include "tests/recipes/cuda/device_run.h"

namespace linnet {
namespace {

using test::kGpu;
using test::kReplayed;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kOptimizerReplayed = "the optimizer is a CUDA graph of ";

class CudaGraphTraining : public test::DeviceRun {};

TEST_F(CudaGraphTraining, EveryMechanismHasTheSameBits) {
  std::vector<std::string> eager;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    std::vector<std::string> changes = {test::small_attention(mechanism),
                                        "model.width=16",
                                        "model.layers=1",
                                        "train.max_steps=4",
                                        "model.attention_dropout=0.1",
                                        "train.micro_batch=3"};
    std::vector<std::string> logs;
    if (traits.causal) {
      changes.push_back("train.tokens_per_update=48");
      logs.push_back(expect_same(recipe(changes), mechanism.name));
      changes.pop_back();
    }
    if (traits.noncausal) {
      changes.push_back("train.examples_per_update=3");
      logs.push_back(expect_same(classifier(changes), mechanism.name + "-classifier"));
    }
    for (const std::string& log : logs) {
      if (!testing::Value(log, ContainsRegex(kReplayed))) eager.push_back(mechanism.name + log);
    }
  }
  EXPECT_THAT(eager, IsEmpty());
}

TEST_F(CudaGraphTraining, EveryOptionHasTheSameBits) {
  // Micro-batches of 4 and 2 examples: two forms, the first of them replayed at once.
  const std::vector<std::string> all = {"model.dropout=0.2",
                                        "model.activation_dropout=0.1",
                                        "model.attention_dropout=0.1",
                                        "model.attention={name: softmax}",
                                        "train.micro_batch=4",
                                        "optim.clip_norm=0.05",
                                        "optim.ema={decay: 0.8, warmup: true}",
                                        "optim.schedule={kind: linear, warmup_steps: 2}"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> variants = {
      {"f32", all},
      {"bf16", {"train.precision=bf16"}},
      {"recompute", {"train.recompute=block", "data.cross_documents=false"}},
      {"token_types", {"model.token_types=2"}},
      {"kv_heads", {"model.attention={name: softmax}", "model.kv_heads=1"}},
      {"adaptive",
       {"model.embedding=adaptive", "model.cutoffs=[101, 115]", "model.cutoff_factor=2",
        "model.head_dropout=0.2"}},
      {"sgd", {"optim={kind: sgd, lr: 0.05, clip_value: 0.1}"}},
      {"nag",
       {"optim={kind: nag, lr: 0.05, clip_norm: 0.5}",
        "optim.schedule={kind: inverse_sqrt, warmup_steps: 3}"}},
      {"one_cycle",
       {"optim.schedule={kind: one_cycle, steps: 7, warmup_steps: 3, cycle_beta1: true}"}},
  };
  for (const auto& [label, changes] : variants) {
    std::vector<std::string> overrides = changes;
    if (label == "bf16" || label == "recompute") {
      overrides.insert(overrides.begin(), all.begin(), all.end());
    }
    const std::string log = expect_same(recipe(overrides), label);
    EXPECT_THAT(log, ContainsRegex(kReplayed)) << label;
    EXPECT_THAT(log, HasSubstr(kOptimizerReplayed)) << label;
    EXPECT_THAT(log, Not(HasSubstr("without"))) << label;
  }
}

TEST_F(CudaGraphTraining, FormsOfBatchesHaveGraphsOfTheirOwn) {
  // 12 examples by 5: 5, 5 and 2.
  const std::string log = expect_same(classifier(), "forms");
  EXPECT_THAT(log, HasSubstr("pass of 5 x 16 tokens is a CUDA graph"));
  EXPECT_THAT(log, HasSubstr("pass of 2 x 16 tokens is a CUDA graph"));
}

TEST_F(CudaGraphTraining, PairsOfTextsHaveTheSameBits) {
  const std::string log = expect_same(pairs({"model.dropout=0.1"}), "pairs");
  EXPECT_THAT(log, ContainsRegex(kReplayed));
  EXPECT_THAT(log, Not(HasSubstr("without")));
}

TEST_F(CudaGraphTraining, GeneratedSequencesHaveTheSameBits) {
  const std::string log = expect_same(sequences(), "sequences");
  EXPECT_THAT(log, ContainsRegex(kReplayed));
  EXPECT_THAT(log, Not(HasSubstr("without")));
}

TEST_F(CudaGraphTraining, ResumesBitForBitWithAndWithout) {
  const std::vector<std::string> changes = {"model.dropout=0.1", "evaluate.every_steps=0",
                                            "optim.ema={decay: 0.8, warmup: true}"};
  const Recipe whole = recipe(changes);
  log_of(whole, "straight");
  for (const bool graph : {true, false}) {
    const std::string name = graph ? "with" : "without";
    Recipe part = whole;
    part.train.max_steps = 4;
    log_of(part, name);
    Recipe rest = whole;
    rest.train.cuda_graph = graph;
    log_of(rest, name);
    expect_equal(left(name), left("straight"), name);
  }
}

TEST_F(CudaGraphTraining, EvaluationsInBetweenChangeNothing) {
  Recipe often = recipe({"evaluate.every_steps=1", "evaluate.contexts=[8]", "train.max_steps=4",
                         "optim.ema={decay: 0.8}", "model.attention={name: cosformer}"});
  log_of(often, "often-graph");
  often.train.cuda_graph = false;
  log_of(often, "often-eager");
  expect_equal(left("often-graph"), left("often-eager"), "often");
}

TEST_F(CudaGraphTraining, SkippedLayersAreChosenByTheHost) {
  const std::string log =
      expect_same(recipe({"model.layer_dropout=0.5", "train.max_steps=5"}), "layers");
  EXPECT_THAT(log, HasSubstr("pass of 6 x 16 tokens runs without a CUDA graph: "
                             "model.layer_dropout, by which the host"));
  EXPECT_THAT(log, Not(ContainsRegex(kReplayed)));
  EXPECT_THAT(log, HasSubstr(kOptimizerReplayed));
}

TEST_F(CudaGraphTraining, FreshDrawsAreMadeBeforeReplays) {
  // Drawn in every step, in some and in none; micro-batches of two forms, each with its graph.
  const std::vector<std::string> small = {"model.layers=1", "train.tokens_per_update=48",
                                          "train.micro_batch=2", "train.recompute=block",
                                          "train.precision=bf16"};
  for (const char* changes :
       {"{name: performer, features: 4, redraw_steps: 1, redrawn: gaussian, per: head}",
        "{name: performer, features: 4, redraw_steps: 1000}",
        "{name: rfa, features: 4, redraw_steps: 3}"}) {
    std::vector<std::string> overrides = small;
    overrides.push_back(concat("model.attention=", changes));
    const std::string label = concat("redrawn", std::hash<std::string>()(changes));
    const std::string log = expect_same(recipe(overrides), label);
    EXPECT_THAT(log, ContainsRegex(kReplayed)) << changes;
    EXPECT_THAT(log, Not(HasSubstr("without a CUDA graph"))) << changes;
  }
}

// Draws inside kernels on tensor cores are those of the step that is replayed.
TEST_F(CudaGraphTraining, TensorCoresDropByTheStepOfTheReplay) {
  const std::vector<std::string> small = {
      "model.layers=1",    "model.width=16",       "model.attention_dropout=0.2",
      "train.max_steps=4", "train.precision=bf16", "train.backend=tensor_cores"};
  std::vector<std::string> overrides = small;
  overrides.insert(overrides.end(), {"train.tokens_per_update=48", "train.micro_batch=3",
                                     "model.attention={name: lavo, rank: 8, window: 4}"});
  std::string log = expect_same(recipe(overrides), "one-pass");
  EXPECT_THAT(log, ContainsRegex(kReplayed));
  overrides = small;
  overrides.insert(overrides.end(), {"train.examples_per_update=3",
                                     "model.attention={name: lavo, rank: 8, window: 4}"});
  log = expect_same(classifier(overrides), "whole-memory");
  EXPECT_THAT(log, ContainsRegex(kReplayed));
}

TEST_F(CudaGraphTraining, WeightsThatMixersCorrectAreCorrectedByTheHost) {
  const std::string log =
      expect_same(recipe({"model.attention={name: lavo, rank: 3, window: 4, basis_train: qr}",
                          "optim.ema={decay: 0.8}", "train.precision=bf16"}),
                  "qr");
  EXPECT_THAT(log, HasSubstr("after an update runs without a CUDA graph"));
  EXPECT_THAT(log, ContainsRegex(kReplayed));
  EXPECT_THAT(log, HasSubstr(kOptimizerReplayed));
}

TEST_F(CudaGraphTraining, WhatIsSkippedIsDecidedInEveryReplay) {
  const auto updates = [&](bool graph, const std::string& attention) {
    Recipe recipe = this->recipe({attention, "optim.ema={decay: 0.8}", "model.dropout=0.1"});
    recipe.train.cuda_graph = graph;
    const std::unique_ptr<Task> task = make_task(recipe);
    const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes(), kGpu);
    Updater updater = make_updater(recipe, model->parameters());
    TrainStep step(recipe, *task, *model, updater);
    Progress progress;
    const Tensor& weights = model->parameters().weights();
    std::string skipped;
    std::vector<Tensor> result;
    int64_t taken = 0;
    for (int64_t i = 0; i < 7; ++i) {
      const Tensor before = weights.clone();
      const bool poisoned = i == 0 || i == 4;
      if (poisoned) weights.slice(0, {1}).fill(std::numeric_limits<double>::quiet_NaN());
      skipped +=
          step.run(progress, [&] { return task->train_batch(6 * taken++, 6); }).skipped ? "s" : ".";
      if (poisoned) weights.copy_from(before);
      result.push_back(weights.to(Device{}).clone());
    }
    EXPECT_EQ(skipped, "s...s..");
    for (const auto& [name, tensor] : updater.optimizer->state()) {
      result.push_back(tensor.to(Device{}));
    }
    result.push_back(updater.average->average().to(Device{}));
    return result;
  };
  for (const char* attention :
       {"model.attention={name: linear}",
        "model.attention={name: lavo, rank: 3, window: 4, basis_train: qr}"}) {
    testing::internal::CaptureStderr();
    const std::vector<Tensor> with = updates(true, attention), without = updates(false, attention);
    testing::internal::GetCapturedStderr();
    ASSERT_EQ(with.size(), without.size());
    for (size_t i = 0; i < with.size(); ++i) {
      EXPECT_TRUE(test::same_bits(with[i], without[i])) << attention << " " << i;
    }
    EXPECT_TRUE(test::same_bits(with[3], with[4])) << "a skipped update changes no weight";
  }
}

TEST_F(CudaGraphTraining, GoesOnWithoutWhenTheirMemoryDoesNotFit) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a device of a chosen size";
  Recipe tight = recipe({"evaluate.every_steps=0", "train.max_steps=3", "data.context=9",
                         "train.tokens_per_update=36", "train.cuda_graph=false"});
  reset_peak_memory(kGpu);
  log_of(tight, "eager");
  size_t room = peak_allocated_bytes(kGpu);
  // The least that single operations can do with: the C library rounds what it allocates. Graphs
  // round more.
  for (bool fits = false; !fits; room += room / 100) {
    setenv("LINNET_EMULATED_MEMORY", std::to_string(room).c_str(), 1);
    try {
      run(tight, concat("room-", room), "auto", kGpu);
      fits = true;
    } catch (const Error&) {
    }
  }
  tight.train.cuda_graph = true;
  const std::string log = log_of(tight, "tight");
  unsetenv("LINNET_EMULATED_MEMORY");
  EXPECT_THAT(log, HasSubstr("training goes on without CUDA graphs, whose memory did not fit: "));
  EXPECT_THAT(log, HasSubstr("CUDA graphs ("));
  expect_equal(left("tight"), left("eager"), "tight");
}

}  // namespace
}  // namespace linnet
