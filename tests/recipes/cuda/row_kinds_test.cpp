// Rows that are no running text on the device: learned as on the CPU, resumed bit for bit, replayed
// as CUDA graphs, scored and predicted on either device.
#include "tests/recipes/row_kinds.h"

#include <gmock/gmock.h>

#include "recipes/engine/evaluate.h"
#include "recipes/engine/make_task.h"
#include "tests/recipes/cuda/device_run.h"

namespace linnet {
namespace {

using test::kGpu;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPrecisions[] = {"train.precision=f32", "train.precision=bf16"};

class CudaRowKinds : public test::DeviceRun {};

TEST_F(CudaRowKinds, AreLearnedAsOnTheCpu) {
  for (const auto& [name, recipe] : row_kinds({"model.width=16"}))
    expect_as_on_cpu(recipe, name, test::kSameArithmetic);
}

TEST_F(CudaRowKinds, ResumeBitForBit) {
  for (const char* precision : kPrecisions) {
    for (const auto& [kind, whole] : row_kinds({precision, "optim.ema={decay: 0.8}"})) {
      const std::string name = concat(kind, " ", precision);
      run(whole, name + " straight", "auto", kGpu);
      Recipe part = whole;
      part.train.max_steps = 3;
      EXPECT_EQ(run(part, name + " cut", "auto", kGpu).progress.step, 3);
      run(whole, name + " cut", "auto", kGpu);
      EXPECT_EQ(left(name + " cut").step, 7);
      expect_equal(left(name + " cut"), left(name + " straight"), name);
    }
  }
}

TEST_F(CudaRowKinds, GraphsHaveTheSameBits) {
  for (const char* precision : kPrecisions) {
    for (const auto& [kind, recipe] : row_kinds({precision})) {
      const std::string log = expect_same(recipe, concat(kind, " ", precision));
      EXPECT_THAT(log, ContainsRegex(test::kReplayed)) << kind;
      EXPECT_THAT(log, Not(HasSubstr("without"))) << kind;
    }
  }
}

TEST_F(CudaRowKinds, AreScoredAndPredictedOnEitherDevice) {
  for (const auto& [kind, recipe] : row_kinds({"model.width=16"})) {
    const std::string& name = kind;
    run(recipe, name, "auto", kGpu);
    const bool classifies = task_kind(recipe) == TaskKind::classification;
    const std::string on_cpu = folder_ / (name + "-cpu.tsv"),
                      on_gpu = folder_ / (name + "-gpu.tsv");
    const auto score_on = [&](Device device, const std::string& predictions) {
      EvaluateRequest request;
      request.device = device;
      request.batch = 7;
      if (classifies) request.predictions = predictions;
      return evaluate(out(name), request).scores.at(0);
    };
    const Score cpu = score_on({}, on_cpu), gpu = score_on(kGpu, on_gpu);
    EXPECT_GT(cpu.tokens, 0) << name;
    EXPECT_EQ(gpu.tokens, cpu.tokens) << name;
    EXPECT_EQ(gpu.confusion, cpu.confusion) << name;
    EXPECT_EQ(gpu.correct, cpu.correct) << name;
    EXPECT_NEAR(gpu.nll(), cpu.nll(), 1e-5 * cpu.nll()) << name;
    ASSERT_EQ(gpu.values.size(), cpu.values.size()) << name;
    for (size_t i = 0; i < cpu.values.size(); ++i)
      EXPECT_NEAR(gpu.values[i].first, cpu.values[i].first, 1e-4) << name;
    // Values are written with three decimals, which may round either way.
    if (classifies && cpu.values.empty()) {
      EXPECT_EQ(read_file(on_gpu), read_file(on_cpu)) << name;
    }
  }
}

}  // namespace
}  // namespace linnet
