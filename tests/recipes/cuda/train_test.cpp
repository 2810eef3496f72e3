// The main job on the device: the losses of the CPU, runs that resume bit for bit, evaluation and
// generation from their checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "attention/registry.h"
#include "core/cuda/backend.h"
#include "core/cuda/cudnn.h"
#include "core/cuda/runtime.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/generator.h"
#include "tests/recipes/cuda/device_run.h"

namespace linnet {
namespace {

using test::kGpu;
using test::kSameArithmetic;

class CudaTraining : public test::DeviceRun {};

TEST_F(CudaTraining, EveryMechanismLearnsAsOnTheCpu) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (traits.causal) {
      expect_as_on_cpu(recipe({test::small_attention(mechanism), "model.width=16"}), mechanism.name,
                       kSameArithmetic);
    }
    if (traits.noncausal) {
      expect_as_on_cpu(classifier({test::small_attention(mechanism), "model.width=16"}),
                       mechanism.name + "-classifier", kSameArithmetic);
    }
    ++checked;
  }
  EXPECT_GE(checked, 8);
}

TEST_F(CudaTraining, EveryOptionOfModelAndOptimizerIsThatOfTheCpu) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> variants = {
      {"dropout",
       {"model.dropout=0.2", "model.activation_dropout=0.1", "model.attention_dropout=0.1",
        "model.attention={name: softmax}", "model.layer_dropout=0.3", "train.micro_batch=4"}},
      {"post_norm", {"model.norm_position=post", "model.norm=rms", "model.positions=rotary"}},
      {"swiglu", {"model.activation=swiglu", "model.positions=sinusoidal", "model.norm=scale"}},
      {"gelu_tanh", {"model.activation=gelu_tanh", "model.norm=rms"}},
      {"learned", {"model.positions=learned", "model.tie_embeddings=false", "model.bias=false"}},
      {"packed", {"data.cross_documents=false", "train.recompute=block"}},
      {"sgd", {"optim={kind: sgd, lr: 0.05, clip_value: 0.1}", "optim.ema={decay: 0.8}"}},
      {"nag", {"optim={kind: nag, lr: 0.05, clip_norm: 0.5}"}},
  };
  for (const auto& [label, overrides] : variants) {
    expect_as_on_cpu(recipe(overrides), label, kSameArithmetic);
  }
}

TEST_F(CudaTraining, PairsOfTextsAreLearnedAsOnTheCpu) {
  for (const char* pooling : {"mean", "cls"}) {
    expect_as_on_cpu(pairs({concat("model.pooling=", pooling), "model.width=16"}), pooling,
                     kSameArithmetic);
  }
}

TEST_F(CudaTraining, GeneratedSequencesAreLearnedAndScoredAsOnTheCpu) {
  expect_as_on_cpu(sequences({"model.width=16"}), "recall", kSameArithmetic);
  EXPECT_EQ(series("recall-cuda", "accuracy"), series("recall-cpu", "accuracy"));
}

// Three updates in bf16 are at most three times as far from f32 as the CPU's are, of each figure
// the worst; or half an ulp of bf16, where those happen to be closer.
TEST_F(CudaTraining, Bf16IsAsCloseToF32AsOnTheCpu) {
  const auto three_updates = [&](const char* precision, const char* name, Device device) {
    run(recipe({concat("train.precision=", precision), "model.attention={name: softmax}",
                "train.max_steps=3"}),
        name, "auto", device);
  };
  three_updates("f32", "exact", {});
  three_updates("bf16", "plain", {});
  three_updates("bf16", "device", kGpu);
  for (const char* key : {"loss", "grad_norm", "nll"}) {
    const std::vector<double> exact = series("exact", key);
    ASSERT_FALSE(exact.empty()) << key;
    const auto error_of = [&](const char* name) {
      const std::vector<double> values = series(name, key);
      EXPECT_EQ(values.size(), exact.size()) << name << " " << key;
      double worst = 0;
      for (size_t i = 0; i < std::min(values.size(), exact.size()); ++i) {
        test::keep_worst(worst, std::abs(values[i] - exact[i]) / std::abs(exact[i]));
      }
      return worst;
    };
    const double plain = error_of("plain"), got = error_of("device");
    EXPECT_TRUE(got <= std::max(3 * plain, 0x1p-9)) << key << ": " << got << ", the CPU " << plain;
  }
}

// By default and on demand, tensor cores compute causal linear attention in bf16; `plain` keeps it
// off them. What they do not cover is refused where they are demanded.
TEST_F(CudaTraining, BackendChoosesTheKernels) {
  const auto with = [&](const char* backend, const char* attention) {
    return recipe({"train.precision=bf16", "train.max_steps=2", "model.width=32",
                   "data.cross_documents=true", concat("train.backend=", backend),
                   concat("model.attention=", attention)});
  };
  for (const char* backend : {"auto", "tensor_cores", "plain"}) {
    run(with(backend, "{name: linear}"), backend, "auto", kGpu);
  }
  EXPECT_EQ(series("tensor_cores", "loss"), series("auto", "loss"));
  EXPECT_NE(series("plain", "loss"), series("auto", "loss"));  // rounds elsewhere
  const std::string refused = test::message_of<UsageError>([&] {
    run(with("tensor_cores", "{name: transnormer_diag, weights: relu}"), "relu", "auto", kGpu);
  });
  EXPECT_THAT(refused, ::testing::HasSubstr("do not cover weights relu"));
  EXPECT_THAT(test::message_of<UsageError>(
                  [&] { run(with("tensor_cores", "{name: linear}"), "cpu", "auto", Device{}); }),
              ::testing::HasSubstr("needs a CUDA device, and this runs on cpu"));
}

// Softmax attention alone trains by cuDNN; validation, which computes no gradients, does not.
TEST_F(CudaTraining, CudnnTrainsSoftmaxAttention) {
  if (!cuda::cudnn_problem().empty()) GTEST_SKIP() << cuda::cudnn_problem();
  const auto with = [&](const char* backend, const char* attention, const char* other = "",
                        const char* across = "true") {
    std::vector<std::string> keys{"train.precision=bf16",
                                  "train.max_steps=4",
                                  "model.width=32",
                                  concat("data.cross_documents=", across),
                                  concat("train.backend=", backend),
                                  concat("model.attention=", attention)};
    if (*other != 0) keys.emplace_back(other);
    return recipe(keys);
  };
  constexpr const char* kSoftmax = "{name: softmax}";
  run(with("cudnn", kSoftmax), "cudnn", "auto", kGpu);
  run(with("cudnn", kSoftmax, "train.cuda_graph=false"), "without_graph", "auto", kGpu);
  run(with("auto", kSoftmax), "auto", "auto", kGpu);
  EXPECT_EQ(series("cudnn", "loss"), series("without_graph", "loss"));
  const std::vector<double> got = series("cudnn", "loss"), expected = series("auto", "loss");
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-2);
  EXPECT_NE(got, expected);  // rounds elsewhere
  const auto refusal = [&](const char* attention, const char* other, const char* across = "true") {
    return test::message_of<UsageError>(
        [&] { run(with("cudnn", attention, other, across), "refused", "auto", kGpu); });
  };
  EXPECT_THAT(refusal(kSoftmax, "", "false"),
              ::testing::HasSubstr("reads no rows of several documents"));
  EXPECT_THAT(refusal("{name: linear}", ""),
              ::testing::HasSubstr("trains softmax attention alone, and 'attention' has linear; "
                                   "use 'backend: auto'"));
  EXPECT_THAT(refusal(kSoftmax, "train.recompute=block"),
              ::testing::HasSubstr("set 'recompute: none'"));
}

TEST_F(CudaTraining, ResumesBitForBit) {
  const Recipe whole = recipe({"model.attention={name: lavo, rank: 3, window: 4}",
                               "model.dropout=0.1", "optim.ema={decay: 0.8, warmup: true}"});
  run(whole, "straight", "auto", kGpu);
  Recipe part = whole;
  part.train.max_steps = 3;
  run(part, "cut", "auto", kGpu);
  run(whole, "cut", "auto", kGpu);
  expect_equal(left("cut"), left("straight"), "after step 3");
}

TEST_F(CudaTraining, CheckpointsAreScoredAndContinuedOnEitherDevice) {
  run(recipe({"model.attention={name: cosformer}"}), "run", "auto", kGpu);
  EvaluateRequest request;
  request.contexts = {8, 16};
  const EvaluateReport expected = evaluate(out("run"), request);
  request.device = kGpu;
  const EvaluateReport got = evaluate(out("run"), request);
  ASSERT_EQ(got.scores.size(), expected.scores.size());
  for (size_t i = 0; i < got.scores.size(); ++i) {
    EXPECT_NEAR(got.scores[i].nll(), expected.scores[i].nll(), 1e-5);
    EXPECT_EQ(got.scores[i].tokens, expected.scores[i].tokens);
  }
  GenerateOptions options;
  options.tokens = 12;
  options.sampling.temperature = 0;
  const auto continued = [&](Device device) {
    const LoadedModel loaded = load_model(out("run"), {}, device);
    const std::vector<int32_t> prompt = encode_prompt(*loaded.tokenizer, "the ");
    return generate(*loaded.model, prompt, options).tokens;
  };
  EXPECT_EQ(continued(kGpu), continued({}));
}

TEST_F(CudaTraining, StreamsWithCarriedState) {
  run(recipe({"model.attention={name: lavo, rank: 3, window: 4}"}), "run", "auto", kGpu);
  EvaluateRequest request;
  request.contexts = {16};
  request.carry_state = true;
  const double expected = evaluate(out("run"), request).scores.at(0).nll();
  request.device = kGpu;
  EXPECT_NEAR(evaluate(out("run"), request).scores.at(0).nll(), expected, 1e-5);
}

// Trains on both of two devices and says on stderr how these runs differ, and what the second one
// left on the first device.
class CudaSecondDevice : public CudaTraining {
 protected:
  [[noreturn]] void train_on_both() {
    const Device second{DeviceKind::cuda, 1};
    const Recipe recipe = this->recipe({"model.attention={name: performer, features: 8}",
                                        "model.dropout=0.1", "optim.ema={decay: 0.8}"});
    run(recipe, "first", "auto", kGpu);
    const size_t left_there = allocated_bytes(kGpu);
    reset_peak_memory(kGpu);
    cuda::set_device(second.index);
    run(recipe, "second", "auto", second);
    expect_equal(left("second"), left("first"), "second");
    EXPECT_EQ(peak_allocated_bytes(kGpu), left_there);
    EXPECT_GT(peak_allocated_bytes(second), 0U);
    std::_Exit(HasFailure() ? 1 : 0);
  }
};

TEST_F(CudaSecondDevice, TrainsAloneAndWithTheSameBits) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs two devices";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("LINNET_EMULATED_DEVICES", "2", 1);
  EXPECT_EXIT(train_on_both(), testing::ExitedWithCode(0), "");
  unsetenv("LINNET_EMULATED_DEVICES");
}

TEST_F(CudaTraining, NamesTheMicroBatchThatWouldFit) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a device of a chosen size";
  const size_t room = allocated_bytes(kGpu) + 120'000;
  setenv("LINNET_EMULATED_MEMORY", std::to_string(room).c_str(), 1);
  std::string text;
  try {
    run(recipe({"evaluate.every_steps=0"}), "tight", "auto", kGpu);
  } catch (const Error& error) {
    text = error.what();
  }
  unsetenv("LINNET_EMULATED_MEMORY");
  EXPECT_THAT(text,
              ::testing::ContainsRegex("out of memory on cuda:0: .* requested by activations, "
                                       ".* free of .*; the largest users are "));
  EXPECT_THAT(text, ::testing::ContainsRegex("a micro-batch of 6 examples did not fit, about [1-5] "
                                             "would: set train.micro_batch=[1-5]"));
}

TEST_F(CudaTraining, SkipsStepsThatAreNotFinite) {
  const TrainOutcome outcome =
      run(recipe({"optim.lr=1e30", "optim.clip_norm=0", "train.max_steps=4",
                  "train.max_nonfinite_steps=10", "evaluate.every_steps=0"}),
          "diverging", "auto", kGpu);
  EXPECT_GT(outcome.progress.skipped, 0);
}

}  // namespace
}  // namespace linnet
