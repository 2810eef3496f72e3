// Linear attention on tensor cores gives what the CPU computes in double, at the edges of chunks,
// value tiles and blocks, for views that are read in place, and for extreme inputs; and it is taken
// where it should be.
#include "attention/primitives/linear_attention/cuda/fast.h"

#include <cstdlib>

#include "attention/primitives/linear_attention/cuda/fast_calls.h"
#include "attention/primitives/linear_attention/cuda/path.h"
#include "attention/primitives/linear_attention/linear_attention.h"
#include "core/cuda/backend.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "tests/attention/cuda/linear_attention_fast_inputs.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

using Setting = test::FastSetting;
using test::expect_what_the_cpu_computes;
using test::inputs_of;
using test::kFloored;
using test::kPlain;
using test::kScaled;
using test::kUsual;
using test::mask_of;
using test::run;

TEST(CudaLinearAttentionFast, GivesWhatTheCpuComputesInDouble) {
  const std::vector<Setting> settings{
      {"one chunk", kUsual, 1, 64, 1, 1, 64, 64},
      {"a token more", kUsual, 1, 65, 2, 2, 32, 32},
      {"a token less, of three chunks", kPlain, 2, 191, 1, 1, 16, 16, true},
      {"with all", kScaled, 3, 130, 4, 2, 64, 64, true, true},
      {"short", kUsual, 2, 17, 2, 1, 16, 8, true, true},
      {"floored", kFloored, 2, 70, 1, 1, 32, 24, false, true},
      {"wide", kScaled, 2, 73, 2, 1, 128, 128, true, true},
      {"wide, not normalised", kPlain, 1, 33, 1, 1, 128, 40, true},
      {"wide, with tiles of values", kUsual, 1, 72, 1, 1, 128, 136, true},
      {"wide values", kPlain, 1, 66, 2, 1, 16, 40, false, true},
      {"values of three tiles", kScaled, 2, 37, 2, 1, 8, 264, true, true},
      {"values of two tiles, not normalised", kPlain, 1, 20, 1, 1, 24, 136, true},
      {"between the widths of tiles", kUsual, 2, 66, 2, 1, 24, 72, true, true},
  };
  for (const Setting& s : settings) expect_what_the_cpu_computes(s, inputs_of(s));
}

// Segments that begin and end anywhere in chunks; the first one of a row continues the state, the
// last one leaves it.
TEST(CudaLinearAttentionFast, SegmentsDoNotSeeEachOther) {
  constexpr auto kCausal = test::FastKind::causal;
  for (const Setting& s : std::vector<Setting>{
           {"segments", kUsual, 2, 200, 2, 1, 32, 32, true, true, kCausal, 0, true},
           {"not normalised", kPlain, 1, 239, 1, 1, 16, 16, true, false, kCausal, 0, true},
           {"within a chunk", kScaled, 1, 63, 1, 1, 64, 24, true, true, kCausal, 0, true},
           {"wide", kScaled, 1, 140, 2, 1, 128, 128, true, true, kCausal, 0, true},
           {"wide values", kScaled, 1, 70, 2, 1, 16, 136, true, true, kCausal, 0, true},
           {"long enough to be cut", kUsual, 1, 530, 1, 1, 16, 16, true, true, kCausal, 0, true}}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Blocks fill whole waves of what a GPU runs at once, unless splits would be shorter than four
// chunks.
TEST(CudaLinearAttentionFast, SplitsFillWavesOfBlocks) {
  namespace fast = cuda::linear_attention_fast;
  for (const int64_t slots : {fast::kSlots, 3 * fast::kMultiprocessors}) {
    for (const int64_t blocks : {1, 8, 192}) {
      for (int64_t tokens = 256; tokens <= 65536; tokens *= 2) {
        const fast::SplitSizes sizes = fast::split_sizes(tokens, blocks, slots);
        const int64_t all = sizes.count * blocks, waves = (all + slots - 1) / slots;
        EXPECT_GE(sizes.count * sizes.tokens, tokens);
        EXPECT_TRUE(sizes.count == 1 || sizes.tokens >= 4 * 64);
        EXPECT_TRUE(10 * all >= 7 * waves * slots || sizes.tokens < 8 * 64)
            << blocks << " blocks, " << tokens << " tokens: " << sizes.count << " splits";
      }
    }
  }
  // Measured shape: 16 rows of 12 heads, 8,192 tokens.
  EXPECT_EQ(fast::split_sizes(8192, 192, 3 * fast::kMultiprocessors).count, 2);
  EXPECT_EQ(fast::split_sizes(8192, 192).count, 4);
}

// Few heads: blocks have splits of the sequence, here of five and of four chunks, three in all;
// backward too.
TEST(CudaLinearAttentionFast, SplitsOfALongSequenceContinueEachOther) {
  const Setting s{"splits", kScaled, 2, 13 * 64 + 5, 2, 1, 16, 24, true, true};
  cuda::linear_attention_fast::Forward call;
  call.device = kGpu;
  const std::vector<Tensor> in = inputs_of(s);
  std::vector<Tensor> on_device;
  for (size_t i = 1; i < 3; ++i) on_device.push_back(in[i].to(DType::bf16).to(kGpu));
  call.k = {cuda::pointer<const cuda::kernel_bf16>(on_device[0]), s.B, s.T, s.G, s.K};
  call.v = {cuda::pointer<const cuda::kernel_bf16>(on_device[1]), s.B, s.T, s.G, s.V};
  call.set_features({});
  const auto splits = cuda::linear_attention_fast::splits_of(call, 8);
  EXPECT_EQ(splits.sizes.count, 3);
  EXPECT_EQ(splits.sizes.tokens, 5 * 64);
  EXPECT_EQ(cuda::linear_attention_fast::splits_of(call, 264).sizes.count, 1);
  expect_what_the_cpu_computes(s, in);
  for (const Setting& other : std::vector<Setting>{
           {"one row, one head", kUsual, 1, 16 * 64, 1, 1, 16, 16},
           {"not normalised", kPlain, 1, 9 * 64 + 1, 2, 1, 32, 16, true},
           {"of wide values", kScaled, 1, 8 * 64 + 1, 1, 1, 16, 136, false, true}}) {
    expect_what_the_cpu_computes(other, inputs_of(other));
  }
}

// Logits of +-80, features that are all zero, one valid key.
TEST(CudaLinearAttentionFast, ExtremeInputsStayFinite) {
  Setting s{"", kUsual, 2, 80, 1, 1, 16, 16};
  test::expect_extremes_as_on_the_cpu(s);
  s = {"one valid key", kUsual, 2, 80, 1, 1, 16, 16, false, true};
  const std::vector<Tensor> in = inputs_of(s);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  LinearAttentionContext context;
  std::vector<uint8_t> one(160, 0);
  one[37] = one[80 + 79] = 1;
  context.key_mask = Tensor::from(one, {2, 80}, kGpu);
  context.query_mask = Tensor::from(mask_of(2, 80), {2, 80}, kGpu);
  const auto on_device = [&](size_t i) { return Variable(in[i].to(DType::bf16).to(kGpu)); };
  const std::vector<double> y =
      linear_attention_causal({on_device(0), on_device(1), on_device(2), {}, {}}, context)
          .y.value()
          .to(Device{})
          .to_vector<double>();
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t token = i / 16 % 80, column = i % 16;
    const bool reads = i / 16 < 80 && token >= 37 && token % 5 != 3;
    const double value = in[2].data<double>()[37 * 16 + column];
    // bf16 holds the value; its product with a weight is rounded, and y.
    EXPECT_NEAR(y[i], reads ? value : 0, reads ? 0x1p-7 * std::abs(value) : 0) << token;
  }
}

TEST(CudaLinearAttentionFast, GradientsOfQueriesSurviveValuesWithAMean) {
  test::expect_small_differences_of_large_sums({"", kUsual, 1, 64, 1, 1, 16, 16});
}

TEST(CudaLinearAttentionFast, RepeatsBitForBitAndLooksAtNothingLater) {
  const Setting s{"", kUsual, 1, 100, 2, 1, 16, 16};
  const std::vector<Tensor> once = test::expect_the_same_bits_again(s);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s);
  in[2].data<double>()[90 * 16] = 5;
  const std::vector<float> before = once[0].to_vector<float>();
  const std::vector<float> after = run(s, in, kGpu)[0].to_vector<float>();
  for (size_t i = 0; i < 90 * 2 * 16; ++i) ASSERT_EQ(before[i], after[i]);
  EXPECT_NE(before[90 * 2 * 16], after[90 * 2 * 16]);
}

// One array [B,T,3,H,K] holds q, k and v, another one their gradients: the kernels read and write
// them where they are.
TEST(CudaLinearAttentionFast, ReadsAndWritesFusedProjectionsInPlace) {
  constexpr int64_t B = 2, T = 70, H = 2, K = 16;
  const Tensor fused = random_tensor({B, T, 3, H, K}, "fused").to(DType::bf16).to(kGpu);
  const Tensor dfused = Tensor::empty(fused.shape(), DType::bf16, kGpu);
  std::vector<Variable> dense;
  for (int64_t part = 0; part < 3; ++part)
    dense.emplace_back(test::part_of(fused, part).to(kGpu), true);
  const Tensor dy = random_tensor({B, T, H, K}, "dy").to(DType::bf16).to(kGpu);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Variable expected = linear_attention_causal({dense[0], dense[1], dense[2], {}, {}}, {}).y;
  backward({expected}, {dy});

  const Tensor y = Tensor::empty({B, T, H, K}, DType::bf16, kGpu);
  const Tensor denominators = Tensor::empty({B, T, H}, DType::f32, kGpu);
  const Tensor corrections = Tensor::empty({B, T, H}, DType::f32, kGpu);
  cuda::linear_attention_fast::Forward forward;
  forward.device = kGpu;
  forward.q = test::part_view(fused, 0);
  forward.k = test::part_view(fused, 1);
  forward.v = test::part_view(fused, 2);
  forward.set_features({});
  forward.y = {cuda::pointer<cuda::kernel_bf16>(y), B, T, H, K};
  forward.denominators = cuda::pointer<float>(denominators);
  cuda::linear_attention_fast::causal_forward(forward);
  EXPECT_TRUE(test::same_bits(y.to(Device{}), expected.value().to(Device{})));

  cuda::linear_attention_fast::Backward call;
  static_cast<cuda::linear_attention_fast::Forward&>(call) = forward;
  call.dy = {cuda::pointer<const cuda::kernel_bf16>(dy), B, T, H, K};
  call.corrections = cuda::pointer<float>(corrections);
  call.dq = test::part_view(dfused, 0);
  call.dk = test::part_view(dfused, 1);
  call.dv = test::part_view(dfused, 2);
  cuda::linear_attention_fast::causal_backward(call);
  for (int64_t part = 0; part < 3; ++part) {
    const Tensor gradient = dense[static_cast<size_t>(part)].grad().to(Device{});
    EXPECT_TRUE(test::same_bits(test::part_of(dfused, part), gradient)) << part;
  }
}

// Calls whose results would be wrong or missing without a word.
TEST(CudaLinearAttentionFast, IncompleteCallsAreRefused) {
  namespace fast = cuda::linear_attention_fast;
  const Tensor x = Tensor::zeros({1, 16, 1, 16}, DType::bf16, kGpu);
  fast::Backward call;
  call.device = kGpu;
  call.q = {cuda::pointer<const cuda::kernel_bf16>(x), 1, 16, 1, 16};
  call.k = call.v = call.dy = call.q;
  EXPECT_THROW(fast::causal_forward(call), Error);  // as the others, without set_features()
  EXPECT_THROW(fast::causal_backward(call), Error);
  EXPECT_THROW(fast::memory_forward(call), Error);
  EXPECT_THROW(fast::memory_backward(call), Error);
  EXPECT_THROW(fast::read_forward(call), Error);
  EXPECT_THROW(fast::read_backward(call), Error);
  call.set_features({});
  EXPECT_THROW(fast::gradient_splits_of(call, 1), Error);  // without corrections

  LinearAttentionTensors in;
  in.q = in.k = in.v = x;
  const Tensor numbers = Tensor::zeros({1, 16, 1}, DType::f32, kGpu), none;
  EXPECT_THROW(cuda::fast_causal_forward(in, x, none, none, numbers), Error);
  EXPECT_THROW(cuda::fast_read_forward(in, x, none), Error);
  EXPECT_THROW(cuda::fast_memory_forward(in, none, none), Error);
  EXPECT_THROW(cuda::fast_memory_backward(in, none, none, {}), Error);
}

TEST(CudaLinearAttentionFast, WhatItDoesNotCoverIsSaidOnce) {
  // A line that was logged once is not logged again when the test is repeated.
  static int64_t width = 19;
  width += 2;
  const Variable x(Tensor::zeros({1, 17, 1, width}, DType::bf16, kGpu));
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) linear_attention_causal({x, x, x, {}, {}}, {});
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string said = concat("do not cover features of ", width, " and values of ", width);
  const size_t first = log.find(said);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(said, first + 1), std::string::npos) << log;
}

TEST(CudaLinearAttentionFast, WhatItDoesNotCoverGoesToThePlainKernels) {
  const auto tensor = [](const Shape& shape, DType dtype = DType::bf16) {
    return Tensor::zeros(shape, dtype, kGpu);
  };
  const auto arrays_of = [&](int64_t T, int64_t K, int64_t V, DType dtype) {
    LinearAttentionTensors in;
    in.q = in.k = tensor({1, T, 1, K}, dtype);
    in.v = tensor({1, T, 1, V}, dtype);
    return in;
  };
  const auto why = [](const LinearAttentionTensors& in) {
    return cuda::why_plain_linear_attention(in);
  };
  const LinearAttentionTensors usual = arrays_of(16, 16, 16, DType::bf16);
  EXPECT_EQ(why(usual), "");
  EXPECT_EQ(why(arrays_of(40, 128, 256, DType::bf16)), "");
  EXPECT_EQ(why(arrays_of(16, 16, 16, DType::f32)), "values of f32");
  EXPECT_EQ(why(arrays_of(16, 256, 16, DType::bf16)), "");
  EXPECT_EQ(why(arrays_of(16, 264, 16, DType::bf16)), "features of 264 and values of 16");
  EXPECT_EQ(why(arrays_of(16, 20, 16, DType::bf16)), "features of 20 and values of 16");
  EXPECT_EQ(why(arrays_of(16, 16, 12, DType::bf16)), "features of 16 and values of 12");
  EXPECT_EQ(why(arrays_of(15, 16, 16, DType::bf16)), "fewer than 16 tokens");
  LinearAttentionTensors other = usual;
  other.log_decay = tensor({1, 16, 1}, DType::f32);
  EXPECT_EQ(why(other), "");
  other.q = other.k = tensor({1, 16, 1, 136});
  EXPECT_EQ(why(other), "a decaying state of 136 features");
  other = usual;
  other.query_proportions = other.key_proportions = tensor({1, 16, 1}, DType::f32);
  EXPECT_EQ(why(other), "");
  other.q = other.k = tensor({1, 16, 1, 136});
  EXPECT_EQ(why(other), "features of 272 and values of 16");
  for (const int64_t K : {12, 36}) {
    other.q = other.k = tensor({1, 16, 1, K});
    EXPECT_EQ(why(other), concat("re-weighted heads of ", K));
  }
  other = usual;
  other.q = tensor({16 * 16 + 1}).slice(1, {1, 16, 1, 16});
  EXPECT_EQ(why(other), "tensors that do not begin on 16 bytes");
  other = arrays_of(16, 136, 16, DType::bf16);
  other.log_decay = tensor({1, 16, 1}, DType::f32);
  EXPECT_TRUE(cuda::linear_attention_is_fast(usual));
  EXPECT_FALSE(cuda::linear_attention_is_fast(other));
  {
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    EXPECT_NE(test::message_of<Error>([&] {
                cuda::linear_attention_is_fast(other);
              }).find("do not cover a decaying state"),
              std::string::npos);
    const UseKernels plain(KernelChoice::plain, kGpu);
    EXPECT_FALSE(cuda::linear_attention_is_fast(usual));
  }
  EXPECT_TRUE(cuda::linear_attention_is_fast(usual));
}

// Backend tensor_cores, for forward and backward passes and for other forms; decoding
// token by token is left to the plain kernels.
TEST(CudaLinearAttentionFast, DemandedTensorCoresRefuseWhatTheyDoNotCover) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const auto numbers = [](int64_t T, int64_t K, DType dtype = DType::bf16) {
    return Variable(random_tensor({1, T, 1, K}, "x", dtype).to(kGpu), true);
  };
  const auto causal = [](const Variable& x) {
    return linear_attention_causal({x, x, x, {}, {}}, {}).y;
  };
  const auto refusal = [](const auto& body) { return test::message_of<UsageError>(body); };
  EXPECT_EQ(refusal([&] { causal(numbers(16, 16, DType::f32)); }),
            "linear attention: backend tensor_cores was requested, but the kernels on tensor cores "
            "do not cover values of f32; use backend auto");
  EXPECT_EQ(causal(numbers(1, 16)).size(1), 1);
  EXPECT_EQ(causal(numbers(15, 19, DType::f32)).size(1), 15);
}

// The widest heads take 105 KiB of a block's shared memory.
TEST(CudaLinearAttentionFast, SmallSharedMemoryTakesThePlainKernels) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  const Variable x(random_tensor({1, 20, 1, 128}, "x", DType::bf16).to(kGpu));
  const auto why = [&] {
    LinearAttentionTensors in;
    in.q = in.k = in.v = x.value();
    return cuda::why_plain_linear_attention(in);
  };
  const auto y_of = [](const Variable& in) {
    return linear_attention_causal({in, in, in, {}, {}}, {}).y.value();
  };
  const auto y = [&] { return y_of(x); };
  EXPECT_EQ(why(), "");
  const Tensor fast = y();
  setenv("LINNET_EMULATED_CAPABILITY", "86", 1);
  const std::string reason = why();
  const Tensor plain = y();
  unsetenv("LINNET_EMULATED_CAPABILITY");
  EXPECT_EQ(reason,
            "features of 128 on a GPU with 99 KiB of shared memory a block (they take 105)");
  const Tensor host = x.value().to(Device{});
  const Tensor exact = y_of(Variable(host.to(DType::f64)));
  for (const Tensor& each : {plain, fast}) {
    EXPECT_TRUE(test::close_in_bf16(each, exact, y_of(Variable(host)), 0));
  }
}

}  // namespace
}  // namespace linnet
