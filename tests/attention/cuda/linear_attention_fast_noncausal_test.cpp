// Linear attention over all keys on tensor cores, noncausal and cross, gives what the CPU computes
// in double, for sequences that are split, for views that are read in place, and for
// extreme inputs; and it is taken where it should be.
#include <cstdlib>

#include "attention/primitives/linear_attention/cuda/path.h"
#include "core/cuda/backend.h"
#include "tests/attention/cuda/linear_attention_fast_inputs.h"

namespace linnet {
namespace {

namespace fast = cuda::linear_attention_fast;
using Setting = test::FastSetting;
using test::expect_what_the_cpu_computes;
using test::kGpu;
using test::kUsual;
using test::random_tensor;
constexpr auto kAll = test::FastKind::noncausal;

TEST(CudaLinearAttentionFastNoncausal, GivesWhatTheCpuComputesInDouble) {
  const std::vector<Setting> settings{
      {"one chunk", kUsual, 1, 64, 1, 1, 64, 64, false, false, kAll},
      {"a token more", kUsual, 2, 65, 2, 2, 32, 24, false, true, kAll},
      {"not normalised", test::kPlain, 2, 95, 1, 1, 16, 16, false, false, kAll},
      {"cross, with all", test::kScaled, 3, 65, 4, 2, 64, 64, false, true, kAll, 130},
      {"cross, short", kUsual, 2, 17, 2, 1, 24, 8, false, true, kAll, 19},
      {"floored", test::kFloored, 2, 70, 1, 1, 32, 24, false, true, kAll},
      {"wide", kUsual, 1, 72, 2, 1, 128, 128, false, true, kAll, 40},
      {"wide, not normalised", test::kPlain, 1, 33, 1, 1, 128, 40, false, false, kAll},
      {"wide values", test::kScaled, 2, 33, 2, 1, 16, 72, false, true, kAll},
      {"values of three tiles", test::kScaled, 1, 33, 2, 1, 16, 264, false, true, kAll, 21},
      {"values of two tiles, not normalised", test::kPlain, 1, 20, 1, 1, 8, 136, false, false,
       kAll},
      {"wide, with tiles of values", kUsual, 1, 40, 1, 1, 128, 136, false, false, kAll},
  };
  for (const Setting& s : settings) expect_what_the_cpu_computes(s, inputs_of(s));
}

// Few heads: blocks have splits of the sequence, whose sums are added up, as are those of the query
// heads that share keys.
TEST(CudaLinearAttentionFastNoncausal, SplitsOfALongSequenceAddUp) {
  const fast::SplitSizes sizes = fast::split_sizes(13 * 64 + 5, 2);
  EXPECT_EQ(sizes.count, 3);
  EXPECT_EQ(sizes.tokens, 5 * 64);
  EXPECT_EQ(fast::split_sizes(13 * 64 + 5, 264).count, 1);
  EXPECT_EQ(fast::split_sizes(7 * 64, 1).count, 1);
  EXPECT_EQ(fast::split_sizes(0, 1).count, 1);
  const Setting s{"splits", test::kScaled, 1,    13 * 64 + 5, 2,         1, 16,
                  24,       false,         true, kAll,        8 * 64 + 9};
  expect_what_the_cpu_computes(s, inputs_of(s));
}

// Every segment has a memory of its own, which its queries read.
TEST(CudaLinearAttentionFastNoncausal, SegmentsDoNotSeeEachOther) {
  for (const Setting& s : std::vector<Setting>{
           {"segments", test::kScaled, 2, 200, 2, 1, 32, 24, false, true, kAll, 0, true},
           {"wide", kUsual, 1, 101, 1, 1, 128, 64, false, true, kAll, 0, true},
           {"wide values", kUsual, 2, 61, 1, 1, 8, 136, false, true, kAll, 0, true},
           {"split", test::kPlain, 1, 1340, 1, 1, 16, 16, false, false, kAll, 0, true}}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Logits of +-80, features that are all zero, one valid key, and none.
TEST(CudaLinearAttentionFastNoncausal, ExtremeInputsStayFinite) {
  const Setting s{"", kUsual, 2, 80, 1, 1, 16, 16, false, false, kAll};
  test::expect_extremes_as_on_the_cpu(s);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s);
  LinearAttentionContext context;
  std::vector<uint8_t> one(160, 0);
  one[37] = 1;
  context.key_mask = Tensor::from(one, {2, 80}, kGpu);
  std::vector<Variable> x;
  for (size_t i = 0; i < 3; ++i) x.emplace_back(in[i].to(DType::bf16).to(kGpu), true);
  const LinearAttentionVariables variables{x[0], x[1], x[2], {}, {}};
  const Variable y =
      linear_attention_read(variables, linear_attention_memory(variables, context), context);
  const std::vector<double> found = y.value().to(Device{}).to_vector<double>();
  for (size_t i = 0; i < found.size(); ++i) {
    const double value = i < 80 * 16 ? in[2].data<double>()[37 * 16 + i % 16] : 0;
    // bf16 holds the value; its product with a weight is rounded, and y.
    EXPECT_NEAR(found[i], value, 0x1p-7 * std::abs(value)) << i;
  }
  backward({y}, {y.value()});
  for (const Variable& each : x) {
    for (const double d : each.grad().to(Device{}).to_vector<double>()) {
      ASSERT_TRUE(std::isfinite(d));
    }
  }
}

// Where values have a mean, the gradient of a query is a small difference of large sums: it must
// not drown in the rounding of the memory.
TEST(CudaLinearAttentionFastNoncausal, GradientsOfQueriesSurviveValuesWithAMean) {
  const Setting s{"", kUsual, 1, 64, 1, 1, 16, 16, true};
  const std::vector<Tensor> in = inputs_of(s);
  for (int64_t i = 0; i < in[3].elements(); ++i) {
    in[3].data<double>()[i] = 64 * in[3].data<double>()[i] + 2 * 4096;  // of 4096 tokens
  }
  in[4].fill(4096);
  const Tensor dy = random_tensor({1, 64, 1, 16}, "dy").to(DType::bf16);
  const auto gradients = [&](Device device, DType computed) {
    const auto of = [&](const Tensor& x, DType stored) {
      return test::input_on(device, x, stored, computed);
    };
    const Variable q = of(in[0], DType::bf16), memory = of(in[3], DType::f32),
                   mass = of(in[4], DType::f32);
    const Variable y = linear_attention_read({q, {}, {}, {}, {}}, {memory, mass}, {});
    backward({y}, {dy.to(computed).to(device)});
    return std::vector<Tensor>{q.grad(), memory.grad(), mass.grad()};
  };
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> expected = gradients(Device{}, DType::f64);
  test::expect_close_in_bf16(gradients(kGpu, DType::bf16), expected,
                             gradients(Device{}, DType::bf16));
}

TEST(CudaLinearAttentionFastNoncausal, RepeatsBitForBit) {
  test::expect_the_same_bits_again({"", test::kScaled, 1, 520, 2, 1, 16, 16, false, true, kAll});
}

// One array [B,T,3,H,K] holds q, k and v, another one their gradients: the kernels read and write
// them where they are.
TEST(CudaLinearAttentionFastNoncausal, ReadsAndWritesFusedProjectionsInPlace) {
  constexpr int64_t B = 2, T = 70, H = 2, K = 16;
  const Tensor fused = random_tensor({B, T, 3, H, K}, "fused").to(DType::bf16).to(kGpu);
  const Tensor dfused = Tensor::empty(fused.shape(), DType::bf16, kGpu);
  std::vector<Variable> dense;
  for (int64_t part = 0; part < 3; ++part) {
    dense.emplace_back(test::part_of(fused, part).to(kGpu), true);
  }
  const Tensor dy = random_tensor({B, T, H, K}, "dy").to(DType::bf16).to(kGpu);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const LinearAttentionVariables variables{dense[0], dense[1], dense[2], {}, {}};
  const auto sums = linear_attention_memory(variables, {});
  const Variable expected = linear_attention_read(variables, sums, {});
  backward({expected}, {dy});

  const auto floats = [](const Shape& shape) { return Tensor::empty(shape, DType::f32, kGpu); };
  const Tensor memory = floats({B, H, K, K}), mass = floats({B, H, K});
  const Tensor dmemory = floats({B, H, K, K}), dmass = floats({B, H, K});
  const Tensor denominators = floats({B, T, H}), y = Tensor::empty({B, T, H, K}, DType::bf16, kGpu);
  const auto state_of = [](const Tensor& S, const Tensor& z) {
    return LinearAttentionState<float>{cuda::pointer<float>(S), cuda::pointer<float>(z)};
  };
  const auto read_only = [](const LinearAttentionState<float>& state) {
    return LinearAttentionState<const float>{state.memory, state.mass};
  };
  fast::Forward forward;
  forward.device = kGpu;
  forward.q = test::part_view(fused, 0);
  forward.k = test::part_view(fused, 1);
  forward.v = test::part_view(fused, 2);
  forward.set_features({});
  forward.state_out = state_of(memory, mass);
  fast::memory_forward(forward);
  forward.state_in = read_only(forward.state_out);
  forward.y = {cuda::pointer<cuda::kernel_bf16>(y), B, T, H, K};
  forward.denominators = cuda::pointer<float>(denominators);
  fast::read_forward(forward);
  EXPECT_TRUE(test::same_bits(y.to(Device{}), expected.value().to(Device{})));

  fast::Backward call;
  static_cast<fast::Forward&>(call) = forward;
  call.dy = {cuda::pointer<const cuda::kernel_bf16>(dy), B, T, H, K};
  call.dstate_in = state_of(dmemory, dmass);
  call.dq = test::part_view(dfused, 0);
  call.dk = test::part_view(dfused, 1);
  call.dv = test::part_view(dfused, 2);
  fast::read_backward(call);
  call.dstate_out = read_only(call.dstate_in);
  fast::memory_backward(call);
  for (int64_t part = 0; part < 3; ++part) {
    const Tensor gradient = dense[static_cast<size_t>(part)].grad().to(Device{});
    EXPECT_TRUE(test::same_bits(test::part_of(dfused, part), gradient)) << part;
  }
}

TEST(CudaLinearAttentionFastNoncausal, WhatItDoesNotCoverIsPlainOrRefused) {
  const auto tensor = [](const Shape& shape, DType dtype = DType::bf16) {
    return Tensor::zeros(shape, dtype, kGpu);
  };
  LinearAttentionTensors keys, queries;
  keys.k = keys.v = queries.q = tensor({1, 16, 1, 16});
  queries.memory = tensor({1, 1, 16, 16}, DType::f32);
  const auto why = [](const LinearAttentionTensors& in) {
    return cuda::why_plain_linear_attention(in);
  };
  EXPECT_EQ(why(keys), "");
  EXPECT_EQ(why(queries), "");
  LinearAttentionTensors other = queries;
  other.memory = tensor({1, 1, 16, 12}, DType::f32);
  EXPECT_EQ(why(other), "features of 16 and values of 12");
  other = queries;
  other.q = tensor({1, 16, 1, 136});
  other.query_proportions = tensor({1, 16, 1}, DType::f32);
  EXPECT_EQ(why(other), "features of 272 and values of 16");
  other = keys;
  other.k = other.v = tensor({1, 15, 1, 16});
  EXPECT_EQ(why(other), "fewer than 16 tokens");

  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const auto numbers = [](int64_t T, int64_t V, DType dtype) {
    return Variable(random_tensor({1, T, 1, V}, "x", dtype).to(kGpu), true);
  };
  const auto refusal = [](const auto& body) { return test::message_of<UsageError>(body); };
  const auto memory_of = [](const Variable& k, const Variable& v) {
    return linear_attention_memory({{}, k, v, {}, {}}, {});
  };
  const Variable narrow = numbers(16, 16, DType::f32);
  EXPECT_EQ(refusal([&] { memory_of(narrow, narrow); }),
            "linear attention: backend tensor_cores was requested, but the kernels on tensor cores "
            "do not cover values of f32; use backend auto");
  // Short sequences are left to the plain kernels.
  EXPECT_EQ(memory_of(numbers(15, 16, DType::f32), numbers(15, 16, DType::f32)).mass.size(2), 16);
}

// Backward passes of the widest heads take more of a block's shared memory than some GPUs have.
TEST(CudaLinearAttentionFastNoncausal, SmallSharedMemoryTakesThePlainKernelsBackward) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  const Setting s{"", kUsual, 1, 20, 1, 1, 128, 64, false, false, kAll};
  const std::vector<Tensor> in = inputs_of(s), fast = run(s, in, kGpu);
  setenv("LINNET_EMULATED_CAPABILITY", "86", 1);
  const std::vector<Tensor> plain = run(s, in, kGpu);
  const std::string refusal = test::message_of<UsageError>([&] {
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    run(s, in, kGpu);
  });
  unsetenv("LINNET_EMULATED_CAPABILITY");
  EXPECT_NE(refusal.find("the backward pass of features of 128 and values of 64 on a GPU with 99"),
            std::string::npos)
      << refusal;
  EXPECT_TRUE(test::same_bits(plain[0].to(Device{}), fast[0].to(Device{})));
  EXPECT_FALSE(test::same_bits(plain[3].to(Device{}), fast[3].to(Device{})));
  const std::vector<Tensor> exact = run(s, in, Device{}),
                            rounded = run(s, in, Device{}, DType::bf16);
  test::expect_close_in_bf16(plain, exact, rounded, "plain,");
  test::expect_close_in_bf16(fast, exact, rounded, "fast,");
}

}  // namespace
}  // namespace linnet
