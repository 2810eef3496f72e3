// Linear attention on tensor cores whose state decays per channel gives what the CPU computes in
// double, with all gradients, for decays that leave everything, nothing, or anything between.
#include "attention/primitives/linear_attention/cuda/fast_channels.h"
#include "attention/primitives/linear_attention/cuda/path.h"
#include "tests/attention/cuda/linear_attention_fast_inputs.h"

namespace linnet {
namespace {

using Setting = test::FastSetting;
using test::expect_what_the_cpu_computes;
using test::inputs_of;
using test::kGpu;
using test::kPlain;
using test::kScaled;

constexpr LinearAttentionOptions kUnscaled{FeatureMap::identity, 1, Normalizer::none, 0};

Setting decaying(Setting s, double decay, bool segments = false) {
  s.decay = decay;
  s.channels = true;
  s.segments = segments;
  return s;
}

TEST(CudaLinearAttentionFastChannels, GivesWhatTheCpuComputesInDouble) {
  for (const Setting& s : std::vector<Setting>{
           decaying({"one chunk", kPlain, 1, 64, 1, 1, 64, 64}, 0.1),
           decaying({"a token more", kUnscaled, 1, 65, 2, 2, 32, 32}, 2),
           decaying({"a token less, of three chunks", kPlain, 2, 191, 1, 1, 16, 16, true}, 0.02),
           decaying({"with all", kPlain, 3, 130, 2, 2, 64, 40, true, true}, 0.3),
           decaying({"short", kPlain, 2, 17, 2, 2, 16, 8, true, true}, 1),
           decaying({"narrow keys", kUnscaled, 1, 66, 1, 1, 8, 64, false, true}, 0.5)}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

TEST(CudaLinearAttentionFastChannels, SegmentsDoNotSeeEachOther) {
  for (const Setting& s : std::vector<Setting>{
           decaying({"segments", kPlain, 2, 200, 1, 1, 32, 32, true, true}, 0.1, true),
           decaying({"within a chunk", kUnscaled, 1, 63, 1, 1, 64, 24, true}, 0.02, true)}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Gradients of log-decays are sums over all later tokens: before many of them, and past several
// anchors, they are as exact as at the end.
TEST(CudaLinearAttentionFastChannels, GradientsOfLongDecayStayClose) {
  for (const Setting& s : std::vector<Setting>{
           decaying({"slow", kPlain, 1, 1100, 1, 1, 16, 16, true, true}, 0.004),
           decaying({"of a few tokens, to an anchor", kUnscaled, 1, 1024, 1, 1, 16, 8, true}, 2),
           decaying({"segments", kPlain, 1, 1025, 1, 1, 8, 16, true}, 0.02, true)}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Nobody's wish for gradients of log-decays.
TEST(CudaLinearAttentionFastChannels, GradientsWithoutThoseOfLogDecays) {
  const Setting s = decaying({"", kPlain, 1, 70, 1, 1, 16, 16, true}, 0.1);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s), all = test::run(s, in, kGpu);
  std::vector<Variable> leaves;
  for (size_t i = 0; i < 5; ++i) {
    leaves.push_back(test::input_on(kGpu, in[i], i < 3 ? DType::bf16 : DType::f32, DType::bf16));
  }
  LinearAttentionContext context;
  context.options = s.options;
  const Variable decay(in[7].to(DType::f32).to(kGpu));
  const auto result = linear_attention_causal({leaves[0], leaves[1], leaves[2], {}, {}, decay},
                                              context, {leaves[3], leaves[4]});
  const std::vector<Tensor> found =
      test::with_gradients({result.y, result.state.memory, result.state.mass}, leaves);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(test::same_bits(found[i].to(Device{}), all[i].to(Device{}))) << i;
  }
}

// Log-decays of -5 to -30 a token, and tokens and channels that leave everything or nothing: no
// factor overflows, and the weights between others keep their digits.
TEST(CudaLinearAttentionFastChannels, StrongDecays) {
  const Setting s = decaying({"-5 to -30", kPlain, 2, 150, 1, 1, 16, 16, true, true}, 1);
  std::vector<Tensor> in = inputs_of(s);
  double* decays = in[7].data<double>();
  for (int64_t i = 0; i < in[7].elements(); ++i) decays[i] = -5 + 25 * decays[i];
  in[7] = in[7].to(DType::f32).to(DType::f64);
  test::put_nan_behind(test::mask_of(s.B, s.T), in[7]);
  expect_what_the_cpu_computes(s, in);
  Setting mixed = decaying({"all, nothing", kPlain, 2, 150, 1, 1, 16, 16, true, true}, 0.1);
  in = inputs_of(mixed);
  decays = in[7].data<double>();
  for (int64_t i = 0; i < in[7].elements(); ++i) {
    if (i % 7 == 2) decays[i] = 0;
    if (i % 11 == 3) decays[i] = i % 3 == 0 ? -30 : -1e6;
    if (i / 16 % 23 == 5) decays[i] = -1e6;
  }
  test::put_nan_behind(test::mask_of(s.B, s.T), in[7]);
  expect_what_the_cpu_computes(mixed, in);
  mixed.name = "no decay";
  in = inputs_of(mixed);
  in[7].fill(0);
  expect_what_the_cpu_computes(mixed, in);
}

// A decay that is no number leaves none from its token on: a broken gate does not pass for one that
// forgets.
TEST(CudaLinearAttentionFastChannels, NanReachesAllThatFollows) {
  const Setting s = decaying({"", kPlain, 1, 100, 1, 1, 16, 16}, 0.2);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  std::vector<Tensor> in = inputs_of(s);
  in[7].data<double>()[70 * 16 + 3] = std::nan("");
  const std::vector<float> y = test::run(s, in, kGpu)[0].to_vector<float>();
  for (size_t i = 0; i < 70 * 16; ++i) ASSERT_TRUE(std::isfinite(y[i])) << i;
  for (size_t i = 70 * 16; i < 100 * 16; ++i) ASSERT_TRUE(std::isnan(y[i])) << i;
}

// Also decays of later tokens, in whose tiles are earlier ones.
TEST(CudaLinearAttentionFastChannels, RepeatsBitForBitAndLooksAtNothingLater) {
  const Setting s = decaying({"", kPlain, 1, 100, 2, 2, 16, 16}, 0.2);
  const std::vector<Tensor> once = test::expect_the_same_bits_again(s);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s);
  in[7].data<double>()[90 * 2 * 16] = -3;
  const std::vector<float> before = once[0].to_vector<float>();
  const std::vector<float> after = test::run(s, in, kGpu)[0].to_vector<float>();
  for (size_t i = 0; i < 90 * 2 * 16; ++i) ASSERT_EQ(before[i], after[i]);
  EXPECT_NE(before[90 * 2 * 16], after[90 * 2 * 16]);
}

// One array [B,T,3,H,K] holds q, k and v, another one their gradients.
TEST(CudaLinearAttentionFastChannels, ReadsAndWritesFusedProjectionsInPlace) {
  namespace fast = cuda::linear_attention_fast;
  constexpr int64_t B = 2, T = 70, H = 2, K = 16;
  const Tensor fused = test::random_tensor({B, T, 3, H, K}, "fused").to(DType::bf16).to(kGpu);
  const Tensor dfused = Tensor::empty(fused.shape(), DType::bf16, kGpu);
  const Tensor dy = test::random_tensor({B, T, H, K}, "dy").to(DType::bf16).to(kGpu);
  const Tensor decays = inputs_of(decaying({"", kPlain, B, T, H, H, K, K}, 0.2))[7];
  std::vector<Variable> dense;
  for (int64_t part = 0; part < 3; ++part) {
    dense.emplace_back(test::part_of(fused, part).to(kGpu), true);
  }
  const Variable log_decay(decays.to(DType::f32).to(kGpu), true);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  LinearAttentionContext context;
  context.options = kPlain;
  const Variable expected =
      linear_attention_causal({dense[0], dense[1], dense[2], {}, {}, log_decay}, context).y;
  backward({expected}, {dy});

  const Tensor y = Tensor::empty({B, T, H, K}, DType::bf16, kGpu);
  const Tensor dlog_decay = Tensor::empty({B, T, H, K}, DType::f32, kGpu);
  fast::Backward call;
  call.device = kGpu;
  call.q = test::part_view(fused, 0);
  call.k = test::part_view(fused, 1);
  call.v = test::part_view(fused, 2);
  call.set_features(kPlain);
  call.log_decay = cuda::pointer<float>(log_decay.value());
  call.y = {cuda::pointer<cuda::kernel_bf16>(y), B, T, H, K};
  fast::channel_forward(call);
  EXPECT_TRUE(test::same_bits(y.to(Device{}), expected.value().to(Device{})));
  call.dy = {cuda::pointer<const cuda::kernel_bf16>(dy), B, T, H, K};
  call.dq = test::part_view(dfused, 0);
  call.dk = test::part_view(dfused, 1);
  call.dv = test::part_view(dfused, 2);
  fast::channel_backward(call, cuda::pointer<float>(dlog_decay));
  for (int64_t part = 0; part < 3; ++part) {
    const Tensor gradient = dense[static_cast<size_t>(part)].grad().to(Device{});
    EXPECT_TRUE(test::same_bits(test::part_of(dfused, part), gradient)) << part;
  }
  EXPECT_TRUE(test::same_bits(dlog_decay.to(Device{}), log_decay.grad().to(Device{})));
}

// Calls whose features were not set.
TEST(CudaLinearAttentionFastChannels, IncompleteCallsAreRefused) {
  namespace fast = cuda::linear_attention_fast;
  const Tensor x = Tensor::zeros({1, 16, 1, 16}, DType::bf16, kGpu);
  fast::Backward call;
  call.device = kGpu;
  call.q = {cuda::pointer<const cuda::kernel_bf16>(x), 1, 16, 1, 16};
  call.k = call.v = call.dy = call.q;
  EXPECT_THROW(fast::channel_forward(call), Error);
  EXPECT_THROW(fast::channel_backward(call, nullptr), Error);
}

TEST(CudaLinearAttentionFastChannels, WhatItDoesNotCoverGoesToThePlainKernels) {
  const auto tensor = [](const Shape& shape, DType dtype = DType::bf16) {
    return Tensor::zeros(shape, dtype, kGpu);
  };
  const auto why = [&](const LinearAttentionOptions& options, int64_t K, int64_t V, int64_t G) {
    LinearAttentionTensors in;
    in.q = tensor({1, 16, 2, K});
    in.k = tensor({1, 16, G, K});
    in.v = tensor({1, 16, G, V});
    in.log_decay = tensor({1, 16, G, K}, DType::f32);
    in.context.options = options;
    return cuda::why_plain_linear_attention(in);
  };
  EXPECT_EQ(why(kPlain, 64, 64, 2), "");
  EXPECT_EQ(why(kPlain, 72, 64, 2), "a decay per channel of 72 features and 64 values");
  EXPECT_EQ(why(kPlain, 64, 12, 2), "a decay per channel of 64 features and 12 values");
  EXPECT_EQ(why(kPlain, 64, 64, 1), "a decay per channel of shared key heads");
  EXPECT_EQ(why(kScaled, 64, 64, 2), "a decay per channel of mapped features");
  EXPECT_EQ(why({FeatureMap::identity, 1, Normalizer::add, 1}, 64, 64, 2),
            "a decay per channel with denominators");
}

}  // namespace
}  // namespace linnet
