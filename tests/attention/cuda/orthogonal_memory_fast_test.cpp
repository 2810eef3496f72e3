// The causal orthogonal memory on tensor cores gives what the CPU computes in double, at the edges
// of chunks and windows, with everything that it covers and for extreme inputs; and it is taken
// where it should be.
#include "attention/primitives/orthogonal_memory/cuda/fast.h"

#include <cstdlib>

#include "attention/primitives/orthogonal_memory/cuda/path.h"
#include "core/cuda/backend.h"
#include "core/log.h"
#include "tests/attention/cuda/orthogonal_memory_fast_inputs.h"

namespace linnet {
namespace {

using namespace test::orthogonal_memory_inputs;
using test::kGpu;
using test::random_tensor;

constexpr MemoryScope kWindows = MemoryScope::completed_windows, kPrefix = MemoryScope::prefix;

TEST(CudaOrthogonalMemoryFast, GivesWhatTheCpuComputesInDouble) {
  const std::vector<Setting> settings{
      {"one chunk", kWindows, 16, 1, 64, 1, 16, 16},
      {"a token more", kWindows, 16, 1, 65, 2, 32, 32},
      {"windows that chunks cut", kWindows, 7, 2, 150, 2, 8, 16, false, true},
      {"windows of more than a chunk",
       kWindows,
       100,
       2,
       230,
       1,
       16,
       16,
       true,
       false,
       false,
       {38, 99}},
      {"with all", kWindows, 5, 3, 130, 2, 12, 24, true, true, true, {7, 10, 4}},
      {"windows that end with groups of eight",
       kWindows,
       24,
       2,
       200,
       2,
       16,
       16,
       true,
       false,
       false,
       {8, 48}},
      {"the same, and a document",
       kWindows,
       16,
       1,
       200,
       1,
       12,
       16,
       true,
       true,
       false,
       {16},
       -1,
       90},
      {"masks", kWindows, 16, 2, 96, 1, 16, 16, false, false, true},
      {"the usual width", kWindows, 16, 1, 90, 1, 64, 64},
      {"a lower rank", kWindows, 1, 1, 17, 2, 20, 40, true},
      {"wide heads", kWindows, 16, 1, 80, 1, 72, 128},
      {"prefix", kPrefix, 0, 1, 100, 2, 16, 16, true},
      {"prefix with all", kPrefix, 0, 2, 130, 1, 32, 32, true, true, true},
  };
  for (const Setting& s : settings) expect_what_the_cpu_computes(s, inputs_of(s));
}

// Logits of +-80 and more, means of nothing but zeros, one code that counts.
TEST(CudaOrthogonalMemoryFast, ExtremeInputsStayFinite) {
  std::vector<Tensor> in;
  for (const MemoryScope scope : {kPrefix, kWindows}) {
    Setting s{"large logits", scope, scope == kPrefix ? 0 : 16, 2, 80, 1, 16, 16};
    in = inputs_of(s);
    for (int64_t i = 0; i < in[0].elements(); ++i) {
      in[0].data<double>()[i] *= 64;
      in[1].data<double>()[i] = 4 + in[1].data<double>()[i];
    }
    in[1] = in[1].to(DType::bf16).to(DType::f64);
    expect_what_the_cpu_computes(s, in);
    s.name = "codes of zero";
    in = inputs_of(s);
    in[1].fill(0);
    expect_what_the_cpu_computes(s, in);
  }

  const Setting s{"", kWindows, 16, 2, 80, 1, 16, 16};
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  OrthogonalMemoryContext context = context_of(s, kGpu);
  std::vector<uint8_t> one(160, 0);
  one[37] = one[80 + 79] = 1;
  context.code_mask = Tensor::from(one, {2, 80}, kGpu);
  in = inputs_of(s);
  const OrthogonalMemoryResult result = orthogonal_memory(
      Variable(in[0].to(DType::bf16).to(kGpu)), Variable(in[1].to(DType::bf16).to(kGpu)),
      Variable(in[2].to(DType::f32).to(kGpu)), {}, context);
  const auto y = result.y.value().to(Device{}).to_vector<double>();
  const std::vector<int64_t> tokens = result.memory_tokens.to_vector<int64_t>();
  for (size_t i = 0; i < y.size(); ++i) {
    // Positions begin at 3: the window of token 37 ends with token 44.
    const bool reads = i / 16 < 80 && i / 16 >= 45;
    ASSERT_EQ(tokens[i / 16], reads ? 1 : 0) << i / 16;
    ASSERT_EQ(y[i] != 0, reads) << i / 16;
    ASSERT_TRUE(std::isfinite(y[i]));
  }
}

TEST(CudaOrthogonalMemoryFast, RepeatsBitForBitAndLooksAtNothingLater) {
  const Setting s{"", kWindows, 16, 1, 110, 2, 16, 16};
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  std::vector<Tensor> in = inputs_of(s);
  const Outcome once = run(s, in, kGpu), again = run(s, in, kGpu);
  for (size_t i = 0; i < once.values.size(); ++i) {
    EXPECT_TRUE(test::same_bits(once.values[i].to(Device{}), again.values[i].to(Device{})));
  }
  // Token 80 is in a window, from position 3 on, that ends with token 92.
  in[1].data<double>()[80 * 2 * 16] += 5;
  const std::vector<float> before = once.values[0].to_vector<float>();
  const std::vector<float> after = run(s, in, kGpu).values[0].to_vector<float>();
  for (size_t i = 0; i < 93 * 2 * 16; ++i) ASSERT_EQ(before[i], after[i]) << i;
  EXPECT_NE(before[93 * 2 * 16], after[93 * 2 * 16]);
}

TEST(CudaOrthogonalMemoryFast, WhatItDoesNotCoverGoesToThePlainKernels) {
  const auto tensor = [](const Shape& shape, DType dtype = DType::bf16) {
    return Tensor::zeros(shape, dtype, kGpu);
  };
  const auto arrays_of = [&](int64_t T, int64_t d, int64_t r, DType dtype = DType::bf16) {
    OrthogonalMemoryTensors in;
    in.q = in.f = tensor({1, T, 1, d}, dtype);
    in.basis = tensor({1, r, d}, DType::f32);
    return in;
  };
  const Setting usual_setting{"", kWindows, 16, 1, 16, 1, 16, 16};
  const OrthogonalMemoryContext usual = context_of(usual_setting, kGpu);
  const auto why = [&](const OrthogonalMemoryTensors& in) {
    return cuda::why_plain_orthogonal_memory(usual, in);
  };
  EXPECT_EQ(why(arrays_of(16, 16, 16)), "");
  EXPECT_EQ(why(arrays_of(40, 128, 128)), "");
  EXPECT_EQ(why(arrays_of(40, 40, 7)), "");
  EXPECT_EQ(why(arrays_of(16, 16, 16, DType::f32)), "values of f32");
  EXPECT_EQ(why(arrays_of(16, 20, 16)), "heads of 20 with a basis of rank 16");
  EXPECT_EQ(why(arrays_of(16, 136, 16)), "heads of 136 with a basis of rank 16");
  EXPECT_EQ(why(arrays_of(16, 16, 24)), "heads of 16 with a basis of rank 24");
  EXPECT_EQ(why(arrays_of(15, 16, 16)), "fewer than 16 tokens");
  OrthogonalMemoryTensors other = arrays_of(16, 16, 16);
  other.q = tensor({16 * 16 + 1}).slice(1, {1, 16, 1, 16});
  EXPECT_EQ(why(other), "tensors that do not begin on 16 bytes");

  const OrthogonalMemoryTensors in = arrays_of(16, 16, 16);
  const auto why_of = [&](const auto& change) {
    OrthogonalMemoryContext context = usual;
    change(context);
    return cuda::why_plain_orthogonal_memory(context, in);
  };
  EXPECT_EQ(why_of([](auto& c) { c.options.scope = MemoryScope::whole; }), "");
  EXPECT_EQ(why_of([](auto& c) { c.options.shared = true; }), "one memory for all heads");
  EXPECT_EQ(why_of([](auto& c) { c.options.dropout = 0.1; }), "");
  EXPECT_EQ(why_of([](auto& c) { c.options.window = int64_t{1} << 31; }),
            "windows of 2147483648 positions");

  EXPECT_TRUE(cuda::orthogonal_memory_is_fast(usual, in));
  {
    const UseKernels plain(KernelChoice::plain, kGpu);
    EXPECT_FALSE(cuda::orthogonal_memory_is_fast(usual, in));
  }
  EXPECT_TRUE(cuda::orthogonal_memory_backward_is_fast(arrays_of(16, 64, 64)));
  EXPECT_TRUE(cuda::orthogonal_memory_backward_is_fast(arrays_of(16, 128, 64)));
}

TEST(CudaOrthogonalMemoryFast, WhatItDoesNotCoverIsSaidOnce) {
  // A line that was logged once is not logged again when the test is repeated.
  static int64_t width = 35;
  width += 2;
  const Variable x(Tensor::zeros({1, 17, 1, width}, DType::bf16, kGpu));
  const Variable basis(Tensor::zeros({1, 4, width}, DType::f32, kGpu));
  const OrthogonalMemoryContext context = context_of({"", kWindows, 16, 1, 17, 1, 4, width}, kGpu);
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) orthogonal_memory(x, x, basis, {}, context);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string said = concat("do not cover heads of ", width, " with a basis of rank 4");
  const size_t first = log.find(said);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(said, first + 1), std::string::npos) << log;
}

TEST(CudaOrthogonalMemoryFast, DemandedTensorCoresRefuseWhatTheyDoNotCover) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const auto call = [](int64_t T, int64_t d, DType dtype) {
    const Variable x(random_tensor({1, T, 1, d}, "x", dtype).to(kGpu), true);
    const Variable basis(random_tensor({1, 4, d}, "basis", DType::f32).to(kGpu));
    return orthogonal_memory(x, x, basis, {}, context_of({"", kWindows, 16, 1, T, 1, 4, d}, kGpu))
        .y;
  };
  EXPECT_EQ(test::message_of<UsageError>([&] { call(16, 16, DType::f32); }),
            "orthogonal memory: backend tensor_cores was requested, but the kernels on tensor "
            "cores do not cover values of f32; use backend auto");
  EXPECT_EQ(call(1, 16, DType::bf16).size(1), 1);
  EXPECT_EQ(call(15, 19, DType::f32).size(1), 15);
}

// The widest heads take 137 KiB of a block's shared memory forward, and 153 or, with two stages of
// tiles, 204 backward; others fit every GPU with bf16.
TEST(CudaOrthogonalMemoryFast, SmallSharedMemoryTakesThePlainKernels) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  const auto arrays_of = [](int64_t d) {
    OrthogonalMemoryTensors in;
    in.q = in.f = Tensor::zeros({1, 20, 1, d}, DType::bf16, kGpu);
    in.basis = Tensor::zeros({1, 8, d}, DType::f32, kGpu);
    return in;
  };
  const OrthogonalMemoryContext context = context_of({"", kWindows, 16, 1, 20, 1, 8, 128}, kGpu);
  EXPECT_EQ(cuda::why_plain_orthogonal_memory(context, arrays_of(128)), "");
  setenv("LINNET_EMULATED_CAPABILITY", "86", 1);
  const std::string wide = cuda::why_plain_orthogonal_memory(context, arrays_of(128));
  const std::string usual = cuda::why_plain_orthogonal_memory(context, arrays_of(64));
  const bool back = cuda::orthogonal_memory_backward_is_fast(arrays_of(64));
  const bool wide_back = cuda::orthogonal_memory_backward_is_fast(arrays_of(128));
  setenv("LINNET_EMULATED_CAPABILITY", "80", 1);
  const size_t one_stage = cuda::orthogonal_memory_fast::backward_shared_memory(128);
  const size_t usual_stages = cuda::orthogonal_memory_fast::backward_shared_memory(64);
  unsetenv("LINNET_EMULATED_CAPABILITY");
  EXPECT_EQ(wide, "heads of 128 on a GPU with 99 KiB of shared memory a block (they take 137)");
  EXPECT_EQ(usual, "");
  EXPECT_TRUE(back);
  EXPECT_FALSE(wide_back);
  EXPECT_EQ(one_stage / 1024, 153);
  EXPECT_EQ(usual_stages / 1024, 108);
  EXPECT_EQ(cuda::orthogonal_memory_fast::backward_shared_memory(128) / 1024, 221);
}

// Where a block has 163 KiB (compute capability 8.0), backward of wide heads has one stage of
// tiles; where it has 99 KiB (8.6), heads of 64 have.
TEST(CudaOrthogonalMemoryFast, HeadsGoBackwardWithOneStage) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  setenv("LINNET_EMULATED_CAPABILITY", "80", 1);
  const Setting wide{"one stage", kWindows, 16, 1, 140, 1, 72, 128, false, true};
  expect_what_the_cpu_computes(wide, inputs_of(wide));
  setenv("LINNET_EMULATED_CAPABILITY", "86", 1);
  EXPECT_EQ(cuda::orthogonal_memory_fast::backward_shared_memory(64) / 1024, 72);
  Setting s{"one stage of heads of 64", kWindows, 16, 1, 200, 1, 40, 64, true, true, true};
  expect_what_the_cpu_computes(s, inputs_of(s));
  s = {"the same, of whole memories", MemoryScope::whole, 0, 1, 140, 1, 64, 64, true, true};
  expect_what_the_cpu_computes(s, inputs_of(s));
  unsetenv("LINNET_EMULATED_CAPABILITY");
}

// Scans of four quarters of a chunk: windows and documents that end in the middle of quarters, with
// them, and none in some; chunks that end early.
TEST(CudaOrthogonalMemoryFast, QuartersOfAChunkContinueEachOther) {
  for (const int64_t window : {8, 16, 24, 15, 17, 33, 48, 64, 130}) {
    for (const int64_t T : {81, 128, 128 + 47}) {
      const Setting s{"even starts", kWindows, window, 2, T, 1, 16, 16, true, false, false, {0, 8}};
      expect_what_the_cpu_computes(s, inputs_of(s));
    }
  }
  for (const int32_t tokens : {1, 5, 16, 17, 31, 48, 64}) {
    Setting s{"documents", kWindows, 6, 1, 150, 1, 8, 64, true, true, true};
    s.segment_tokens = tokens;
    expect_what_the_cpu_computes(s, inputs_of(s));
    s.scope = kPrefix;
    s.window = 0;
    s.d = 32;
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

}  // namespace
}  // namespace linnet
