// Linear attention on tensor cores whose state decays gives what the CPU computes in double, the
// gradients of log-decays too.
#include "tests/attention/cuda/linear_attention_fast_inputs.h"

namespace linnet {
namespace {

using Setting = test::FastSetting;
using test::expect_what_the_cpu_computes;
using test::inputs_of;
using test::kFloored;
using test::kGpu;
using test::kPlain;
using test::kScaled;
using test::kUsual;
constexpr auto kCausal = test::FastKind::causal;

Setting decaying(Setting s, double decay) {
  s.decay = decay;
  return s;
}

TEST(CudaLinearAttentionFastDecay, GivesWhatTheCpuComputesInDouble) {
  for (const Setting& s : std::vector<Setting>{
           decaying({"one chunk", kUsual, 1, 64, 1, 1, 64, 64}, 0.1),
           decaying({"a token more", kUsual, 1, 65, 2, 2, 32, 32}, 2),
           decaying({"a token less, of three chunks", kPlain, 2, 191, 1, 1, 16, 16, true}, 0.02),
           decaying({"with all", kScaled, 3, 130, 4, 2, 64, 64, true, true}, 0.3),
           decaying({"short", kUsual, 2, 17, 2, 1, 16, 8, true, true}, 1),
           decaying({"floored", kFloored, 2, 70, 1, 1, 32, 24, false, true}, 0.05),
           decaying({"wide", kScaled, 2, 73, 2, 1, 128, 128, true, true}, 0.2),
           decaying({"wide, not normalised", kPlain, 1, 33, 1, 1, 128, 40, true}, 0.5),
           decaying({"wide values", kPlain, 1, 66, 2, 1, 16, 40, false, true}, 0.1),
           decaying({"values of three tiles", kScaled, 2, 37, 2, 1, 8, 264, true, true}, 0.4),
           decaying({"wide, with tiles of values", kUsual, 1, 72, 1, 1, 128, 136, true}, 0.1),
           decaying(
               {"re-weighted", kUsual, 1, 70, 2, 1, 16, 16, true, true, kCausal, 0, false, true},
               0.1)}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

TEST(CudaLinearAttentionFastDecay, SegmentsDoNotSeeEachOther) {
  for (const Setting& s : std::vector<Setting>{
           decaying({"segments", kUsual, 2, 200, 2, 1, 32, 32, true, true, kCausal, 0, true}, 0.1),
           decaying({"not normalised", kPlain, 1, 239, 1, 1, 16, 16, true, false, kCausal, 0, true},
                    0.05),
           decaying({"wide", kScaled, 1, 140, 2, 1, 128, 128, true, true, kCausal, 0, true},
                    0.2)}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Gradients of log-decays are sums over all earlier tokens: after many of them, and past several
// anchors, they are as exact as at the beginning. Long enough to be cut if nothing decayed.
TEST(CudaLinearAttentionFastDecay, GradientsOfLongDecayStayClose) {
  for (const Setting& s : std::vector<Setting>{
           decaying({"slow", kScaled, 1, 1100, 2, 1, 16, 16, true, true}, 0.004),
           decaying({"of a few tokens", kUsual, 1, 1030, 1, 1, 16, 8}, 2),
           decaying({"segments", kPlain, 1, 1025, 1, 1, 8, 16, true, false, kCausal, 0, true},
                    0.02),
           decaying({"wide, with tiles of values", kUsual, 1, 530, 1, 1, 128, 136, true}, 0.01)}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// A decay that is no number leaves none from its token on: a broken gate does not pass for one that
// forgets.
TEST(CudaLinearAttentionFastDecay, NanReachesAllThatFollows) {
  const Setting s = decaying({"", kUsual, 1, 100, 1, 1, 16, 16}, 0.2);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  std::vector<Tensor> in = inputs_of(s);
  in[7].data<double>()[70] = std::nan("");
  const std::vector<float> y = test::run(s, in, kGpu)[0].to_vector<float>();
  for (size_t i = 0; i < 64 * 16; ++i) ASSERT_TRUE(std::isfinite(y[i])) << i;
  for (size_t i = 70 * 16; i < 100 * 16; ++i) ASSERT_TRUE(std::isnan(y[i])) << i;
}

// Tokens that leave everything, or nothing: the weights between others keep their digits.
TEST(CudaLinearAttentionFastDecay, ExtremeDecays) {
  const Setting s = decaying({"extreme", kScaled, 2, 150, 2, 1, 16, 16, true, true}, 0.1);
  std::vector<Tensor> in = inputs_of(s);
  double* decays = in[7].data<double>();
  for (int64_t i = 0; i < in[7].elements(); ++i) {
    if (i % 7 == 2) decays[i] = 0;
    if (i % 11 == 3) decays[i] = i % 3 == 0 ? -80 : -1e6;
  }
  test::put_nan_behind(test::mask_of(s.B, s.T), in[7]);
  expect_what_the_cpu_computes(s, in);
  in = inputs_of(s);
  in[7].fill(0);
  expect_what_the_cpu_computes(s, in);
  // The gradients of a state that vanishes at every token are smaller than the rounding of the
  // CPU's sums.
  in[7].fill(-80);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> expected = test::run(s, in, Device{}), got = test::run(s, in, kGpu);
  const std::vector<Tensor> plain = test::run(s, in, Device{}, DType::bf16);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(test::close_in_bf16(got[i], expected[i], plain[i], i)) << i;
  }
  for (const double x : got[8].to(Device{}).to_vector<double>()) EXPECT_NEAR(x, 0, 1e-30);
}

TEST(CudaLinearAttentionFastDecay, ExtremeFeatures) {
  test::expect_extremes_as_on_the_cpu(decaying({"", kUsual, 2, 80, 1, 1, 16, 16}, 0.1));
}

TEST(CudaLinearAttentionFastDecay, GradientsOfQueriesSurviveValuesWithAMean) {
  test::expect_small_differences_of_large_sums(
      decaying({"a mean", kUsual, 1, 64, 1, 1, 16, 16}, 0.001));
}

// Two rows with one valid key each, from which on every query reads its value.
TEST(CudaLinearAttentionFastDecay, OneValidKey) {
  const Setting s = decaying({"one valid key", kUsual, 2, 80, 1, 1, 16, 16}, 0.5);
  const std::vector<Tensor> in = inputs_of(s);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  LinearAttentionContext context;
  std::vector<uint8_t> one(160, 0);
  one[37] = one[80 + 79] = 1;
  context.key_mask = Tensor::from(one, {2, 80}, kGpu);
  const auto on_device = [&](size_t i, DType dtype = DType::bf16) {
    return Variable(in[i].to(dtype).to(kGpu), true);
  };
  const Variable decay = on_device(7, DType::f32);
  const Variable y =
      linear_attention_causal({on_device(0), on_device(1), on_device(2), {}, {}, decay}, context).y;
  const std::vector<double> numbers = y.value().to(Device{}).to_vector<double>();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t token = i / 16;
    const bool reads = token == 159 || (token >= 37 && token < 80);
    const double value = in[2].data<double>()[(token < 80 ? 37 : 159) * 16 + i % 16];
    // bf16 holds the value; its product with a weight is rounded, and y.
    EXPECT_NEAR(numbers[i], reads ? value : 0, reads ? 0x1p-7 * std::abs(value) : 0) << token;
  }
  // Masked keys decay nothing, so that nothing was left less.
  backward({y}, {test::random_tensor(y.shape(), "dy").to(DType::bf16).to(kGpu)});
  for (const double x : decay.grad().to(Device{}).to_vector<double>()) EXPECT_NEAR(x, 0, 1e-2);
}

TEST(CudaLinearAttentionFastDecay, RepeatsBitForBitAndLooksAtNothingLater) {
  const Setting s = decaying({"", kUsual, 1, 100, 2, 1, 16, 16}, 0.2);
  const std::vector<Tensor> once = test::expect_the_same_bits_again(s);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s);
  in[7].data<double>()[90] = -3;
  const std::vector<float> before = once[0].to_vector<float>();
  const std::vector<float> after = test::run(s, in, kGpu)[0].to_vector<float>();
  for (size_t i = 0; i < 90 * 2 * 16; ++i) ASSERT_EQ(before[i], after[i]);
  EXPECT_NE(before[90 * 2 * 16], after[90 * 2 * 16]);
}

// Both kinds of kernels, and nobody's wish for gradients of log-decays.
TEST(CudaLinearAttentionFastDecay, IsWhatThePlainKernelsCompute) {
  const Setting s = decaying({"", kScaled, 2, 140, 2, 1, 32, 24, true, true}, 0.2);
  const std::vector<Tensor> in = inputs_of(s);
  const auto gradients = [&](Device device, DType computed) {
    LinearAttentionContext context;
    context.options = s.options;
    context.query_mask = Tensor::from(test::mask_of(s.B, s.T), {s.B, s.T}, device);
    context.key_mask = context.query_mask;
    std::vector<Variable> leaves;
    for (size_t i = 0; i < 5; ++i) {
      leaves.push_back(test::input_on(device, in[i], i < 3 ? DType::bf16 : DType::f32, computed));
    }
    const Variable decay(test::input_on(device, in[7], DType::f32, computed).value());
    const auto result = linear_attention_causal({leaves[0], leaves[1], leaves[2], {}, {}, decay},
                                                context, {leaves[3], leaves[4]});
    return test::with_gradients({result.y, result.state.memory, result.state.mass}, leaves);
  };
  const std::vector<Tensor> expected = gradients(Device{}, DType::f64);
  const std::vector<Tensor> plain = gradients(Device{}, DType::bf16);
  for (const KernelChoice choice : {KernelChoice::plain, KernelChoice::tensor_cores}) {
    const UseKernels use(choice, kGpu);
    test::expect_close_in_bf16(gradients(kGpu, DType::bf16), expected, plain);
  }
}

}  // namespace
}  // namespace linnet
