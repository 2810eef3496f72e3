// LAVO in one pass on tensor cores drops the weights that primitives drop on the CPU, of the window
// and of the memory, wherever squares and chunks are cut, and by the step that the device holds.
#include "attention/lavo/cuda/lavo_pass.h"

#include <cstdlib>

#include "core/cuda/backend.h"
#include "core/kernel_choice.h"
#include "tests/attention/cuda/lavo_pass_inputs.h"
#include "tests/attention/made_mixer.h"

namespace linnet {
namespace {

using namespace test::lavo_pass_inputs;
using test::kGpu;
using test::random_tensor;

void expect_what_primitives_drop(Setting s) {
  s.dropout = 0.3;
  expect_what_primitives_compute(s, inputs_of(s));
}

TEST(CudaLavoPassDropout, IsThatOfPrimitives) {
  for (const Setting& s :
       std::vector<Setting>{{"a token more than a chunk", 16, 1, 65, 2, 32, 32, 2, true},
                            {"the widest window", 64, 1, 150, 2, 8, 16, 1},
                            {"windows that chunks cut, times that cut fours", 7, 2, 140, 3, 7, 16,
                             3, true, true, false, 5},
                            {"with all", 18, 3, 130, 2, 12, 24, 1, true, true, true, 6},
                            {"the usual width", 16, 1, 80, 2, 64, 64, 1}}) {
    expect_what_primitives_drop(s);
  }
}

TEST(CudaLavoPassDropout, IsThatOfPrimitivesInWideHeads) {
  for (Setting s : std::vector<Setting>{{"a token more than a chunk", 16, 1, 65, 2, 128, 128, 1},
                                        {"with all", 18, 2, 66, 2, 70, 72, 1, true, true, true, 5},
                                        {"the widest window", 64, 1, 70, 1, 8, 120, 1}}) {
    s.scale = 0.125;
    expect_what_primitives_drop(s);
  }
}

// Where a block has 163 KiB of shared memory (compute capability 8.0) the window's gradients of
// wide heads have one stage of tiles.
TEST(CudaLavoPassDropout, WideHeadsDropWithOneStage) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  Setting s{"one stage", 64, 1, 140, 2, 8, 128, 1, false, true};
  s.scale = 0.125;
  setenv("LINNET_EMULATED_CAPABILITY", "80", 1);
  expect_what_primitives_drop(s);
  unsetenv("LINNET_EMULATED_CAPABILITY");
}

// Few heads: the window's backward pass cuts sequences into runs.
TEST(CudaLavoPassDropout, RunsMakeTheSameDraws) {
  expect_what_primitives_drop({"runs", 18, 2, 9 * 64 + 5, 1, 8, 16, 1, false, true, true});
}

// Values of one channel for each key of a window show every draw of the window's, a basis of zeros
// nothing of the memory's; the step is found in device memory, as where a captured graph is
// replayed.
TEST(CudaLavoPassDropout, DropsBitForBitByTheStepOnTheDevice) {
  const Tensor step = Tensor::full({}, 8, DType::i64, kGpu);
  for (const int64_t offset : {0, 7}) {
    Setting s{"", 64, 2, 150, 2, 8, 64};
    s.time_offset = offset;
    s.dropout = 0.5;
    std::vector<Tensor> in = inputs_of(s);
    in[2].fill(0);
    in[3].fill(0);
    for (int64_t i = 0; i < s.B * s.T * s.H; ++i) {
      in[2].data<double>()[i * s.d + i / s.H % s.T % s.d] = 1;
    }
    LavoPassContext context = context_of(s, kGpu);
    for (RandomKey* key : {&context.options.window_key, &context.options.memory_key}) {
      key->step = 0;
      key->device_step = static_cast<const uint64_t*>(step.raw());
    }
    const LavoPassVariables exact = variables_of(in, Device{}), x = variables_of(in, kGpu);
    const std::vector<Tensor> expected =
        differentiate(exact, test::lavo_by_primitives(exact, context_of(s, Device{})));
    const std::vector<Tensor> got = differentiate(x, lavo_pass(x, context));
    const std::vector<double> weights = got[0].to(Device{}).to_vector<double>();
    const std::vector<double> all = expected[0].to_vector<double>();
    int64_t kept = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_EQ(weights[i] == 0, all[i] == 0) << offset << " " << i;
      kept += weights[i] == 0 ? 0 : 1;
    }
    const int64_t pairs = s.B * s.H * (64 * 65 / 2 + 86 * 64);
    EXPECT_NEAR(static_cast<double>(2 * kept) / static_cast<double>(pairs), 1, 0.1);
    test::expect_close_in_bf16(got, expected, run_plainly(s, in));
  }
}

// The mixer trains with it, by the draws of its primitives.
TEST(CudaLavoPassDropout, TheMixerTakesItInTraining) {
  MixerOptions options;
  options.heads = 2;
  options.width = 32;
  options.dropout = 0.4;
  const auto mixer_in = [&](DType dtype, Device device) {
    return test::MadeMixer("lavo", "{rank: 6, window: 4}", options, dtype, device, DType::bf16);
  };
  const test::MadeMixer mixer = mixer_in(DType::bf16, kGpu);
  const Tensor all = random_tensor({3, 1, 45, 2, 16}, "qkv", DType::bf16);
  const auto part = [&](int64_t i, DType dtype = DType::bf16, Device device = kGpu) {
    return Variable(all.slice(i * 45 * 32, {1, 45, 2, 16}).clone().to(dtype).to(device));
  };
  MixerContext context;
  context.training = true;
  context.random = RandomKey{3, 8, 5};
  const Tensor y = mixer.mix(part(0), part(1), part(2), context).y.value().to(Device{});
  const Variable basis(Tensor::from(mixer.parameter("basis"), {2, 6, 16}).to(DType::f32).to(kGpu));
  LavoPassContext pass;
  const RandomKey key = context.random.at("own");
  pass.options = {4, 0.25, false, options.dropout, key, key.at("memory")};
  const Variable passed = lavo_pass({part(0), part(1), part(2), basis, {}}, pass).y;
  EXPECT_TRUE(test::same_bits(y, passed.value().to(Device{})));
  const auto on_cpu = [&](DType dtype) {
    const auto given = [&](int64_t i) { return part(i, dtype, Device{}); };
    return mixer_in(dtype, {}).mix(given(0), given(1), given(2), context).y.value();
  };
  EXPECT_TRUE(test::close_in_bf16(y, on_cpu(DType::f64), on_cpu(DType::bf16), 0));
}

}  // namespace
}  // namespace linnet
