// LAVO in one pass on tensor cores gives what primitives compute on the CPU in double, at the edges
// of chunks and windows, with documents and masks; and LavoMixer takes it where it fits.
#include "attention/lavo/cuda/lavo_pass.h"

#include <cstdlib>

#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "core/cuda/backend.h"
#include "core/kernel_choice.h"
#include "tests/attention/cuda/lavo_pass_inputs.h"
#include "tests/attention/made_mixer.h"

namespace linnet {
namespace {

using namespace test::lavo_pass_inputs;
using test::kGpu;
using test::random_tensor;

TEST(CudaLavoPass, GivesWhatPrimitivesComputeInDouble) {
  const std::vector<Setting> settings{
      {"one chunk", 16, 1, 64, 1, 16, 16, 1},
      {"a token more", 16, 1, 65, 2, 32, 32, 2, true},
      {"the widest window", 64, 1, 150, 1, 8, 16, 1},
      {"windows that chunks cut", 7, 2, 140, 2, 8, 16, 2, true, true, false, 4},
      {"windows of two tokens", 2, 1, 70, 1, 16, 24, 0},
      {"windows that end with groups of eight", 24, 2, 200, 1, 16, 16, 1, false, false, false, 8},
      {"with all", 18, 3, 130, 2, 12, 24, 1, true, true, true, 5},
      {"masks", 16, 2, 96, 1, 16, 16, 0, false, false, true},
      {"the usual width", 16, 1, 80, 1, 64, 64, 1},
      {"four chunks of the usual width", 16, 2, 200, 1, 8, 64, 1, false, false, true, 3},
      {"one stage of the usual width", 40, 1, 200, 1, 8, 64, 1, false, true},
  };
  for (const Setting& s : settings) expect_what_primitives_compute(s, inputs_of(s));
}

// Of the window's gradients two blocks of 64 columns, or three of 32, share a multiprocessor: with
// two stages of tiles where both fit, else with one.
TEST(CudaLavoPass, StagesOfTheWindowsGradientsFitBlocksThatShareAMultiprocessor) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  const auto kibibytes = [](int64_t width, int64_t window) {
    return cuda::lavo_pass_fast::window_backward_shared_memory(width, window) / 1024;
  };
  EXPECT_EQ(kibibytes(64, 16), 108);
  EXPECT_EQ(kibibytes(64, 33), 112);
  EXPECT_EQ(kibibytes(64, 34), 80);  // one stage
  EXPECT_EQ(kibibytes(32, 16), 64);
  EXPECT_EQ(kibibytes(32, 49), 72);
  EXPECT_EQ(kibibytes(32, 50), 56);
  setenv("LINNET_EMULATED_CAPABILITY", "80", 1);
  EXPECT_EQ(kibibytes(64, 16), 72);
  EXPECT_EQ(kibibytes(32, 16), 44);
  unsetenv("LINNET_EMULATED_CAPABILITY");
}

// Heads beyond 64, in tiles of 128 columns, of which eight warps make the window's gradients.
TEST(CudaLavoPass, WideHeadsGiveWhatPrimitivesComputeInDouble) {
  std::vector<Setting> settings{
      {"a token more than a chunk", 16, 1, 65, 1, 128, 128, 1},
      {"the widest window", 64, 1, 70, 1, 8, 128, 1},
      {"with all", 18, 2, 66, 2, 12, 72, 1, true, true, true, 5},
      {"80", 2, 1, 17, 1, 80, 80},
      {"88", 7, 1, 20, 1, 16, 88, 1},
      {"104", 64, 1, 33, 1, 8, 104, 1, true},
      {"120", 16, 1, 20, 1, 64, 120, 1, false, true},
  };
  for (Setting& s : settings) {
    s.scale = 0.125;
    expect_what_primitives_compute(s, inputs_of(s));
  }
}

// Where a block has 163 KiB of shared memory (compute capability 8.0) the window's gradients have
// one stage of tiles, where it has 227 KiB they have two.
TEST(CudaLavoPass, WideHeadsFitSmallerSharedMemory) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  Setting s{"one stage", 64, 1, 140, 1, 8, 128, 1, false, true};
  s.scale = 0.125;
  setenv("LINNET_EMULATED_CAPABILITY", "80", 1);
  const size_t one_stage = cuda::lavo_pass_fast::window_backward_shared_memory(128, 64);
  expect_what_primitives_compute(s, inputs_of(s));
  unsetenv("LINNET_EMULATED_CAPABILITY");
  EXPECT_EQ(one_stage / 1024, 158);
  EXPECT_EQ(cuda::lavo_pass_fast::window_backward_shared_memory(128, 64) / 1024, 226);
  EXPECT_EQ(cuda::lavo_pass_fast::shared_memory(128) / 1024, 153);
}

// Where it has 99 KiB wide heads take the primitives, of which the memory says what it lacks.
TEST(CudaLavoPass, WideHeadsThatDoNotFitAreRefusedByName) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  MixerOptions options;
  options.heads = 1;
  options.width = 128;
  const test::MadeMixer mixer("lavo", "{rank: 8, window: 4}", options, DType::bf16, kGpu);
  const Variable x(random_tensor({1, 20, 1, 128}, "x", DType::bf16).to(kGpu));
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  setenv("LINNET_EMULATED_CAPABILITY", "86", 1);
  const std::string message = test::message_of<UsageError>([&] { mixer.mix(x, x, x, {}, {}); });
  unsetenv("LINNET_EMULATED_CAPABILITY");
  EXPECT_NE(message.find("heads of 128 on a GPU with 99 KiB of shared memory a block"),
            std::string::npos)
      << message;
}

// Logits of +-80 in the window, and one key that counts.
void expect_large_logits_to_stay_finite(const Setting& s) {
  std::vector<Tensor> in = inputs_of(s);
  for (size_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < in[i].elements(); ++j) {
      double& x = in[i].data<double>()[j];
      x = x > 0 ? 3.125 : -3.125;
    }
  }
  expect_what_primitives_compute(s, in);

  LavoPassContext context = context_of(s, kGpu);
  std::vector<uint8_t> one(80, 0);
  one[37] = 1;
  context.mask = Tensor::from(one, {1, 80}, kGpu);
  const Tensor y = lavo_pass(variables_of(in, kGpu), context).y.value();
  const std::vector<double> values = y.to(Device{}).to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t token = i / static_cast<size_t>(s.d);
    const double expected = token == 37 ? 0.5 * in[2].data<double>()[i] : 0;
    ASSERT_NEAR(values[i], expected, 0x1p-8 * std::abs(expected)) << token;  // bf16 holds it
  }
}

TEST(CudaLavoPass, ExtremeInputsStayFinite) {
  expect_large_logits_to_stay_finite({"large logits", 16, 1, 80, 1, 16, 16, 1});
  Setting wide{"large logits of wide heads", 16, 1, 80, 1, 16, 128, 1};
  wide.scale = 0.0625;
  expect_large_logits_to_stay_finite(wide);
}

// Values of zero give codes, sums and most gradients of exactly zero; keys or queries of zero give
// windows and memories that weigh everything alike; zeros everywhere leave nothing.
TEST(CudaLavoPass, ZerosGiveWhatPrimitivesCompute) {
  for (const int64_t width : {16, 72}) {
    const Setting s{"", 7, 1, width == 16 ? 80 : 33, 1, 8, width, 1};
    for (const size_t zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(zero);
      std::vector<Tensor> in = inputs_of(s);
      in[zero].fill(0);
      expect_what_primitives_compute(s, in);
    }
    std::vector<Tensor> in = inputs_of(s);
    for (Tensor& x : in) x.fill(0);
    expect_what_primitives_compute(s, in);
  }
}

// Biases of +-80, values of thousands, values far below one, documents of one token.
TEST(CudaLavoPass, OtherExtremeInputsStayFinite) {
  Setting s{"biases", 16, 1, 80, 1, 16, 16, 1};
  std::vector<Tensor> in = inputs_of(s);
  for (int64_t i = 0; i < in[4].elements(); ++i) in[4].data<double>()[i] = i % 3 == 0 ? 80 : -80;
  expect_what_primitives_compute(s, in);
  for (const double factor : {2048.0, 1.0 / 4096}) {
    s.name = factor > 1 ? "large values" : "small values";
    in = inputs_of(s);
    for (int64_t i = 0; i < in[2].elements(); ++i) in[2].data<double>()[i] *= factor;
    // Logits of the memory grow with the values.
    for (int64_t i = 0; i < in[0].elements(); ++i) in[0].data<double>()[i] /= std::max(factor, 1.0);
    expect_what_primitives_compute(s, in);
  }
  in = inputs_of(s);
  LavoPassContext context = context_of(s, kGpu);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 80; ++i) ids.push_back(i);
  context.segments = Tensor::from(ids, {1, 80}, kGpu);
  const Tensor y = lavo_pass(variables_of(in, kGpu), context).y.value();
  const std::vector<double> halves = y.to(Device{}).to_vector<double>();
  for (size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(halves[i], 0.5 * in[2].data<double>()[i]) << i;  // a token sees itself alone
  }
}

TEST(CudaLavoPass, RepeatsBitForBitAndKeepsNothingWithoutGradients) {
  const Setting s{"", 16, 1, 100, 2, 16, 16, 2};
  const std::vector<Tensor> in = inputs_of(s);
  const auto run = [&] {
    const LavoPassVariables x = variables_of(in, kGpu);
    return differentiate(x, lavo_pass(x, context_of(s, kGpu)));
  };
  const std::vector<Tensor> once = run(), again = run();
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(test::same_bits(once[i].to(Device{}), again[i].to(Device{})));
  }
  const NoGrad off;
  const Tensor y = lavo_pass(variables_of(in, kGpu), context_of(s, kGpu)).y.value();
  EXPECT_TRUE(test::same_bits(once[0].to(Device{}), y.to(Device{})));
}

// The mixer takes it, also with a mask, and goes on from its state with the primitives.
TEST(CudaLavoPass, TheMixerTakesItAndDecodesFromItsState) {
  constexpr int64_t kLength = 45, kAll = 52;
  MixerOptions options;
  options.heads = 2;
  options.width = 32;
  const test::MadeMixer mixer("lavo", "{rank: 8, window: 4}", options, DType::bf16, kGpu,
                              DType::bf16);
  const Tensor all = random_tensor({3, kAll, 2, 16}, "qkv", DType::bf16);
  const auto tokens = [&](int64_t part, int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    return Variable(all.slice((part * kAll + begin) * 32, {1, count, 2, 16}).clone().to(kGpu));
  };
  const auto mask = [](int64_t begin, int64_t end) {
    std::vector<uint8_t> valid(static_cast<size_t>(end - begin), 1);
    if (begin == 0) valid[2] = 0;
    return Tensor::from(valid, {1, end - begin}, kGpu);
  };
  const auto mix = [&](int64_t begin, int64_t end, const MixerState& state) {
    MixerContext context;
    context.place.time_offset = begin;
    context.key_mask = mask(begin, end);
    return mixer.mix(tokens(0, begin, end), tokens(1, begin, end), tokens(2, begin, end), context,
                     state);
  };
  const auto first = mix(0, kLength, {}), rest = mix(kLength, kAll, first.state);
  LavoPassContext context;
  context.options = {4, 0.25, false};
  context.mask = mask(0, kLength);
  const Variable basis(Tensor::from(mixer.parameter("basis"), {2, 8, 16}).to(DType::f32).to(kGpu));
  const LavoPassResult pass = lavo_pass(
      {tokens(0, 0, kLength), tokens(1, 0, kLength), tokens(2, 0, kLength), basis, {}}, context);
  EXPECT_TRUE(test::same_bits(first.y.value().to(Device{}), pass.y.value().to(Device{})));

  const auto at_once = [&](DType dtype) {
    const test::MadeMixer host("lavo", "{rank: 8, window: 4}", options, dtype, {}, DType::bf16);
    MixerContext whole;
    whole.key_mask = mask(0, kAll).to(Device{});
    const auto part = [&](int64_t i) {
      return Variable(all.slice(i * kAll * 32, {1, kAll, 2, 16}).to(dtype));
    };
    return host.mix(part(0), part(1), part(2), whole).y.value();
  };
  const Tensor exact = at_once(DType::f64), plain = at_once(DType::bf16);
  const auto expect_close = [&](const Tensor& got, int64_t begin) {
    const Shape tokens{1, got.size(1), 2, 16};
    EXPECT_TRUE(test::close_in_bf16(got, exact.slice(begin * 32, tokens),
                                    plain.slice(begin * 32, tokens), 0));
  };
  expect_close(first.y.value(), 0);
  expect_close(rest.y.value(), kLength);
}

// Backend tensor_cores, forward and backward.
TEST(CudaLavoPass, DemandedTensorCoresComputeAllOfIt) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Setting s{"demanded", 16, 1, 70, 1, 16, 16, 1};
  expect_what_primitives_compute(s, inputs_of(s));
}

TEST(CudaLavoPass, FitsWhatTheKernelsCover) {
  const auto fits = [](const Setting& s, DType dtype = DType::bf16) {
    const auto zeros = [&](const Shape& shape, DType type) {
      return Variable(Tensor::zeros(shape, type, kGpu));
    };
    const Variable x = zeros({s.B, s.T, s.H, s.d}, dtype);
    return lavo_pass_fits({x, x, x, zeros({s.H, s.rank, s.d}, DType::f32), {}},
                          context_of(s, kGpu));
  };
  EXPECT_TRUE(fits({"", 64, 1, 16, 1, 16, 64}));
  EXPECT_FALSE(fits({"", 65, 1, 16, 1, 16, 64}));
  EXPECT_FALSE(fits({"", 0, 1, 16, 1, 16, 64}));
  EXPECT_TRUE(fits({"", 64, 1, 16, 1, 16, 72}));
  EXPECT_TRUE(fits({"", 64, 1, 16, 1, 128, 128}));
  EXPECT_FALSE(fits({"", 64, 1, 16, 1, 16, 136}));
  EXPECT_FALSE(fits({"", 64, 1, 16, 1, 16, 20}));
  EXPECT_FALSE(fits({"", 64, 1, 16, 1, 24, 16}));
  EXPECT_FALSE(fits({"", 64, 1, 15, 1, 16, 64}));
  EXPECT_FALSE(fits({"", 64, 1, 16, 1, 16, 64}, DType::f32));
  {
    const UseKernels plain(KernelChoice::plain, kGpu);
    EXPECT_FALSE(fits({"", 64, 1, 16, 1, 16, 64}));
  }
  if (kCudaBackend != CudaBackend::emulated) return;
  setenv("LINNET_EMULATED_CAPABILITY", "86", 1);  // 99 KiB of shared memory a block
  EXPECT_TRUE(fits({"", 64, 1, 16, 1, 16, 64}));
  EXPECT_FALSE(fits({"", 64, 1, 16, 1, 16, 72}));
  setenv("LINNET_EMULATED_CAPABILITY", "80", 1);  // 163 KiB
  EXPECT_TRUE(fits({"", 64, 1, 16, 1, 128, 128}));
  unsetenv("LINNET_EMULATED_CAPABILITY");
}

}  // namespace
}  // namespace linnet
