// Performer and random feature attention make features in f32: in bf16 they are rounded where
// tensor cores then compute, and what comes out is what the plain kernels make of them in full.
#include "core/kernel_choice.h"
#include "tests/attention/made_mixer.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

struct Setting {
  const char *mechanism, *parameters;
  Form form;
  int64_t B = 2, T = 70, H = 2;
};

// y and the gradients of q, k and v.
std::vector<Tensor> run(const Setting& s, KernelChoice choice) {
  constexpr int64_t K = 16;
  const int64_t B = s.B, T = s.T, H = s.H;
  const UseKernels use(choice, kGpu);
  MixerOptions options;
  options.width = H * K;
  options.heads = H;
  options.form = s.form;
  const test::MadeMixer mixer(s.mechanism, s.parameters, options, DType::bf16, kGpu);
  std::vector<Variable> in;
  for (const char* name : {"q", "k", "v"}) {
    in.emplace_back(random_tensor({B, T, H, K}, name).to(DType::bf16).to(kGpu), true);
  }
  MixerContext context;
  std::vector<uint8_t> mask(static_cast<size_t>(B * T), 1);
  for (size_t i = 0; i < mask.size(); i += 7) mask[i] = 0;
  context.key_mask = Tensor::from(mask, {B, T}, kGpu);
  if (s.form == Form::cross) context.source_mask = context.key_mask;
  const Variable y = mixer.mix(in[0], in[1], in[2], context).y;
  backward({y}, {random_tensor(y.shape(), "dy").to(DType::bf16).to(kGpu)});
  return {y.value(), in[0].grad(), in[1].grad(), in[2].grad()};
}

void expect_what_plain_kernels_compute(const Setting& s) {
  SCOPED_TRACE(s.mechanism);
  const std::vector<Tensor> expected = run(s, KernelChoice::plain);
  const std::vector<Tensor> got = run(s, KernelChoice::tensor_cores);
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_CLOSE(got[i], expected[i], 1e-2);
    EXPECT_FALSE(test::same_bits(got[i].to(Device{}), expected[i].to(Device{})));
  }
}

TEST(CudaRoundedFeatures, GiveWhatPlainKernelsMakeOfThemInFull) {
  const char* kRelu = "{kernel: relu, features: 24, redraw_steps: 0}";
  const char* kExponential = "{features: 32, redraw_steps: 0}";
  const char* kWaves = "{features: 12, redraw_steps: 0}";
  for (const Setting& s : std::vector<Setting>{{"performer", kRelu, Form::causal},
                                               {"performer", kExponential, Form::noncausal},
                                               {"performer", kExponential, Form::cross},
                                               {"rfa", kWaves, Form::causal},
                                               {"rfa", kWaves, Form::noncausal}}) {
    expect_what_plain_kernels_compute(s);
  }
}

// More than a tile has are computed as two parts of columns.
TEST(CudaRoundedFeatures, TwoPartsGiveWhatPlainKernelsMakeOfThemInFull) {
  expect_what_plain_kernels_compute(
      {"performer", "{kernel: relu, features: 256, redraw_steps: 0}", Form::causal, 1, 40, 1});
  expect_what_plain_kernels_compute(
      {"performer", "{features: 256, redraw_steps: 0}", Form::noncausal, 1, 40, 1});
}

// A running maximum decays the state, and tiles have features in eights.
TEST(CudaRoundedFeatures, AreRefusedWhereTensorCoresDoNotCoverThem) {
  const auto refusal = [](const Setting& s) {
    return test::message_of<UsageError>([&] { run(s, KernelChoice::tensor_cores); });
  };
  EXPECT_NE(refusal({"performer", "{features: 20}", Form::noncausal})
                .find("do not cover features of 20 and values of 16"),
            std::string::npos);
  EXPECT_NE(refusal({"performer", "{features: 24}", Form::causal}).find("do not cover"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
