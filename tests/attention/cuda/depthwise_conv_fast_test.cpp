// The fast convolutions give what the CPU computes in double: filters in registers and on tensor
// cores, at the edges of tiles and runs, across documents and carried tokens, with NaN behind
// masks; and they are taken where they should be.
#include "attention/primitives/depthwise_conv/cuda/fast.h"

#include "attention/primitives/depthwise_conv/cuda/path.h"
#include "attention/primitives/depthwise_conv/depthwise_conv.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "tests/attention/cuda/fused_projection.h"
#include "tests/attention/token_setting.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using test::TokenSetting;

struct Case {
  TokenSetting tokens;
  int64_t heads, width, count, before;
  bool of_channels = false;

  Shape taps() const { return of_channels ? Shape{heads, width, count} : Shape{heads, count}; }
  std::string label() const {
    return concat(tokens.B, " x ", tokens.T, " tokens, ", heads, " heads of ", width, ", tap ",
                  before, " of ", count, of_channels ? " of channels, " : ", ", tokens.label());
  }
};

// y and the gradients of x, taps and past, on the host. What masks hide is NaN.
std::vector<Tensor> results(const Case& c, DType dtype, Device device) {
  const TokenSetting& s = c.tokens;
  const BlockAttentionContext host = s.context();
  const auto make = [&](const Shape& shape, const char* name, const Tensor& mask) {
    return test::poisoned(random_tensor(shape, name), mask).to(DType::bf16).to(dtype).to(device);
  };
  const Variable x(make({s.B, s.T, c.heads, c.width}, "x", host.key_mask), true);
  const Variable taps(random_tensor(c.taps(), "taps").to(DType::bf16).to(dtype).to(device), true);
  Variable past;
  if (s.P > 0) past = Variable(make({s.B, s.P, c.heads, c.width}, "past", host.past_mask), true);
  const Variable y = depthwise_conv(x, past, taps, c.before, test::on_device(host, device));
  backward({y}, {make(y.shape(), "dy", host.query_mask)});
  std::vector<Tensor> out{y.value(), x.grad(), taps.grad()};
  if (past.defined()) out.push_back(past.grad());
  for (Tensor& t : out) t = t.to(Device{});
  return out;
}

void expect_what_the_cpu_computes(const Case& c) {
  SCOPED_TRACE(c.label());
  const UseKernels use(KernelChoice::tensor_cores, kGpu);  // refuses what is not fast
  const std::vector<Tensor> expected = results(c, DType::f64, Device{});
  const std::vector<Tensor> got = results(c, DType::bf16, kGpu);
  test::expect_close_in_bf16(got, expected, results(c, DType::bf16, Device{}));
}

TEST(CudaDepthwiseConvFast, ShortFiltersGiveWhatTheCpuComputesInDouble) {
  const std::vector<Case> cases{
      {{2, 33, 0}, 1, 4, 4, 3},
      {{1, 16, 0}, 2, 8, 1, 0},
      {{2, 70, 0}, 3, 12, 8, 7, true},
      {{2, 41, 0, false, true}, 2, 8, 5, 2, true},
      {{1, 65, 0, true}, 2, 4, 8, 4},
      {{2, 31, 3, true, true, 2}, 1, 8, 4, 3, true},
      {{2, 24, 9, false, true, 40}, 2, 4, 8, 7},
      {{2, 17, 5, true, false, 5}, 33, 16, 3, 1},  // more than the threads of a block
  };
  for (const Case& c : cases) expect_what_the_cpu_computes(c);
}

TEST(CudaDepthwiseConvFast, LongFiltersGiveWhatTheCpuComputesInDouble) {
  const std::vector<Case> cases{
      {{1, 64, 0}, 1, 64, 63, 62},
      {{2, 65, 0}, 2, 16, 63, 31},
      {{1, 63, 0, false, true}, 1, 8, 65, 64},
      {{2, 130, 0, true, true}, 1, 32, 65, 32},
      {{1, 16, 0}, 3, 72, 9, 8},  // two tiles of channels
      {{2, 80, 31, false, true, 40}, 1, 24, 32, 31},
      {{2, 70, 70, true, false, 50}, 2, 8, 63, 62},
      {{2, 20, 7, true, true, 3}, 1, 16, 40, 0},
  };
  for (const Case& c : cases) expect_what_the_cpu_computes(c);
}

// One head's sequence is cut into runs of 256 tokens, channels' filters into runs of 32.
TEST(CudaDepthwiseConvFast, RunsOfALongSequenceContinueEachOther) {
  expect_what_the_cpu_computes({{1, 2 * 256 + 70, 62, true, true, 100}, 1, 8, 63, 62});
  expect_what_the_cpu_computes({{1, 256 + 1, 0}, 1, 16, 63, 31});
  expect_what_the_cpu_computes({{1, 100, 7, true, true, 5}, 1, 4, 8, 7, true});
  cuda::depthwise_conv_fast::Pass pass;
  pass.source.now = {nullptr, 1, 582, 1, 8};
  pass.time = 582;
  EXPECT_EQ(cuda::depthwise_conv_fast::toeplitz_run(pass), 256);
  EXPECT_EQ(cuda::depthwise_conv_fast::window_run(pass), 32);
  pass.source.now = {nullptr, 16, 8192, 12, 64};
  pass.time = 8192;
  EXPECT_EQ(cuda::depthwise_conv_fast::toeplitz_run(pass), 1408);
  EXPECT_EQ(cuda::depthwise_conv_fast::window_run(pass), 128);
}

// Numbers of very different sizes, filters of zeros, and one token that counts.
TEST(CudaDepthwiseConvFast, ExtremeInputs) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  for (const int64_t count : {4, 63}) {
    Tensor numbers = Tensor::zeros({1, 80, 1, 8}, DType::f64),
           mask = Tensor::zeros({1, 80}, DType::u8);
    numbers.fill(std::nan(""));
    for (int64_t c = 0; c < 8; ++c) numbers.data<double>()[30 * 8 + c] = c % 2 == 0 ? 1e38 : -1e-30;
    mask.data<uint8_t>()[30] = 1;
    BlockAttentionContext context;
    context.key_mask = mask.to(kGpu);
    const Variable x(numbers.to(DType::bf16).to(kGpu));
    const auto y_of = [&](double tap) {
      Tensor taps = Tensor::zeros({1, count}, DType::f64);
      taps.data<double>()[0] = tap;
      return depthwise_conv(x, {}, Variable(taps.to(DType::f32).to(kGpu)), count - 1, context)
          .value()
          .to(Device{})
          .to_vector<double>();
    };
    const std::vector<double> in = x.value().to(Device{}).to_vector<double>();
    const std::vector<double> once = y_of(1), never = y_of(0);
    for (int64_t i = 0; i < 80 * 8; ++i) {
      const auto at = static_cast<size_t>(i);
      const bool reached = i / 8 == 30 + count - 1;
      EXPECT_EQ(once[at], reached ? in[static_cast<size_t>(30 * 8 + i % 8)] : 0)
          << count << ", " << i;
      EXPECT_EQ(never[at], 0);
    }
  }
}

TEST(CudaDepthwiseConvFast, RepeatsBitForBitAndCausalFiltersLookAtNothingLater) {
  for (const int64_t count : {8, 63}) {
    const Case c{{1, 100, 0}, 1, 8, count, count - 1};
    const std::vector<Tensor> once = results(c, DType::bf16, kGpu),
                              again = results(c, DType::bf16, kGpu);
    for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i]));
    const Tensor x = random_tensor({1, 100, 1, 8}, "x").to(DType::bf16), other = x.to(DType::f32);
    for (int64_t i = 90 * 8; i < 100 * 8; ++i) other.data<float>()[i] = 7;
    const Variable taps(random_tensor({1, count}, "taps").to(DType::f32).to(kGpu));
    const auto y_of = [&](const Tensor& in) {
      return depthwise_conv(Variable(in.to(DType::bf16).to(kGpu)), {}, taps, count - 1, {})
          .value()
          .to_vector<float>();
    };
    const std::vector<float> before = y_of(x), after = y_of(other);
    for (size_t i = 0; i < 90 * 8; ++i) ASSERT_EQ(before[i], after[i]) << i;
    EXPECT_NE(before[90 * 8], after[90 * 8]);
  }
}

// Tiles of which all tokens count are copied as where there is no mask.
TEST(CudaDepthwiseConvFast, AMaskOfFewTokensHidesNothingElse) {
  constexpr int64_t T = 300, V = 24, kHidden = 150;
  Tensor hidden = random_tensor({1, T, 1, V}, "x"), zero = random_tensor({1, T, 1, V}, "x");
  for (int64_t c = 0; c < V; ++c) {
    hidden.data<double>()[kHidden * V + c] = std::nan("");
    zero.data<double>()[kHidden * V + c] = 0;
  }
  std::vector<uint8_t> valid(T, 1);
  valid[kHidden] = 0;
  BlockAttentionContext masked;
  masked.key_mask = masked.query_mask = Tensor::from(valid, {1, T}, kGpu);
  const Variable taps(random_tensor({1, 33}, "taps").to(DType::f32).to(kGpu));
  const auto y_of = [&](const Tensor& x, const BlockAttentionContext& context) {
    return depthwise_conv(Variable(x.to(DType::bf16).to(kGpu)), {}, taps, 32, context)
        .value()
        .to_vector<float>();
  };
  const std::vector<float> y = y_of(hidden, masked), expected = y_of(zero, {});
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(y[i], i / V == kHidden ? 0 : expected[i]) << i;
  }
}

// x is a part of an array [B,T,2,H,V]: the kernels read it where it is.
TEST(CudaDepthwiseConvFast, ReadsPartsOfFusedProjectionsInPlace) {
  constexpr int64_t B = 2, T = 70, H = 2, V = 16;
  const Tensor fused = random_tensor({B, T, 2, H, V}, "fused").to(DType::bf16).to(kGpu);
  const Variable dense(test::part_of(fused, 1).to(kGpu));
  for (const int64_t count : {4, 33}) {
    const Tensor taps = random_tensor({H, count}, "taps").to(DType::f32).to(kGpu);
    const Variable expected = depthwise_conv(dense, {}, Variable(taps), 2, {});
    const Tensor y = Tensor::empty({B, T, H, V}, DType::bf16, kGpu);
    cuda::depthwise_conv_fast::Pass pass;
    pass.time = T;
    pass.taps = {cuda::pointer<float>(taps), 1, count, 2};
    pass.source.now = test::part_view(fused, 1);
    pass.out.now = {cuda::pointer<cuda::kernel_bf16>(y), B, T, H, V};
    cuda::depthwise_conv_fast::run(pass, {});
    EXPECT_TRUE(test::same_bits(y.to(Device{}), expected.value().to(Device{}))) << count;
  }
}

TEST(CudaDepthwiseConvFast, WhatItDoesNotCoverGoesToThePlainKernels) {
  const auto tensor = [](const Shape& shape, DType dtype = DType::bf16) {
    return Tensor::zeros(shape, dtype, kGpu);
  };
  const auto why = [&](const Tensor& x, const Shape& taps) {
    return cuda::why_plain_depthwise_conv(x, {}, tensor(taps, DType::f32));
  };
  const Tensor x = tensor({1, 16, 2, 8}), narrow = tensor({1, 16, 2, 4}),
               odd = tensor({1, 16, 2, 5});
  EXPECT_EQ(why(x, {2, 63}), "");
  EXPECT_EQ(why(narrow, {2, 4, 8}), "");
  EXPECT_EQ(why(tensor({1, 16, 2, 8}, DType::f32), {2, 4}), "values of f32");
  EXPECT_EQ(why(x, {2, 66}), "filters of 66 taps");
  EXPECT_EQ(why(x, {2, 8, 9}), "filters of 9 taps for each channel");
  EXPECT_EQ(why(narrow, {2, 9}), "9 taps of values of 4, which is no multiple of 8");
  EXPECT_EQ(why(odd, {2, 3}), "3 taps of values of 5, which is no multiple of 4");
  EXPECT_EQ(why(tensor({16 * 8 + 1}).slice(1, {1, 16, 1, 8}), {1, 3}),
            "tensors that do not begin on 16 bytes");
  EXPECT_FALSE(cuda::depthwise_conv_is_fast(tensor({1, 15, 2, 8}), {}, tensor({2, 3})));
  EXPECT_TRUE(cuda::depthwise_conv_is_fast(x, {}, tensor({2, 3})));
  const UseKernels plain(KernelChoice::plain, kGpu);
  EXPECT_FALSE(cuda::depthwise_conv_is_fast(x, {}, tensor({2, 3})));
}

TEST(CudaDepthwiseConvFast, WhatItDoesNotCoverIsRefusedOrSaidOnce) {
  // A line that was logged once is not logged again when the test is repeated.
  static int64_t width = 11;
  width += 2;
  const Variable x(Tensor::zeros({1, 17, 1, width}, DType::bf16, kGpu));
  const Variable taps(Tensor::zeros({1, 3}, DType::f32, kGpu));
  const std::string reason =
      concat("do not cover 3 taps of values of ", width, ", which is no multiple of 4");
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) depthwise_conv(x, {}, taps, 2, {});
  const std::string log = testing::internal::GetCapturedStderr();
  // No word of tensor cores, which short filters never use.
  const size_t first = log.find("runs on its plain kernels: the fast kernels " + reason);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(reason), log.rfind(reason)) << log;
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  EXPECT_EQ(
      test::message_of<UsageError>([&] { depthwise_conv(x, {}, taps, 2, {}); }),
      concat("depthwise convolution: backend tensor_cores was requested, but the fast kernels ",
             reason, "; use backend auto"));
}

}  // namespace
}  // namespace linnet
