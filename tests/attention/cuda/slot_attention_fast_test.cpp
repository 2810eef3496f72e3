// Slot attention on tensor cores gives what the CPU computes in double, at the edges of chunks,
// tiles and value tiles, and for views that are read in place.
#include "attention/primitives/slot_attention/cuda/fast.h"

#include "tests/attention/cuda/fused_projection.h"
#include "tests/attention/cuda/slot_attention_fast_inputs.h"

namespace linnet {
namespace {

using namespace test::slot_attention_fast_inputs;
using test::kGpu;
using test::random_tensor;

TEST(CudaSlotAttentionFast, GivesWhatTheCpuComputesInDouble) {
  const std::vector<Setting> settings{
      {"one chunk", 1, 64, 1, 64, 64, 64},
      {"a token more", 1, 65, 2, 8, 32, 32},
      {"a token less, of three chunks", 1, 191, 1, 16, 16, 16, true},
      {"with all", 2, 130, 2, 40, 64, 64, true, true, true, 0.15},
      {"short", 2, 17, 2, 8, 16, 8, true, true, false},
      {"empty slots are read", 2, 20, 1, 24, 16, 16, true, false, false},
      {"odd widths", 1, 70, 1, 24, 24, 40, false, true},
      {"wide, with tiles of values", 1, 66, 1, 24, 128, 72, true, false, true, 0.1},
      {"tiles of values", 1, 66, 1, 8, 16, 40, true},
      {"wide values", 2, 70, 1, 8, 16, 200, true, true, true, 0.3},
      {"wide keys", 2, 70, 1, 8, 104, 16, true, true, true, 0.1},
      {"wide, of two heads", 1, 70, 2, 40, 128, 128, true, true, false, 0.08},
  };
  for (const Setting& s : settings) {
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, inputs_of(s), mask);
  }
}

TEST(CudaSlotAttentionFast, FinishedMemoriesAreWrittenAndRead) {
  const std::vector<Setting> settings{
      {"noncausal", 2, 70, 1, 16, 16, 16, false, true, true, 0.4, 70},
      {"cross", 2, 130, 2, 8, 32, 24, false, true, true, 0.2, 20},
      {"cross and wide", 1, 70, 1, 8, 72, 72, false, false, true, 0.2, 20},
      {"empty slots are read", 1, 20, 1, 24, 16, 40, false, false, false, 0.4, 66},
  };
  for (const Setting& s : settings) {
    std::vector<Tensor> in = inputs_of(s);
    for (int64_t t = 0; t < s.T; ++t) in[3].data<double>()[t * s.H * s.N] += t == 50 ? 90 : 0;
    in[3] = in[3].to(DType::bf16).to(DType::f64);
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, in, mask);
  }
}

// By several launches, whose softmaxes are joined.
TEST(CudaSlotAttentionFast, ManySlots) {
  const std::vector<Setting> settings{
      {"a part more", 2, 20, 2, 72, 16, 16, true, true, true, 0.6},
      {"three parts", 1, 66, 1, 136, 32, 24, false, false, true, 0.3},
      {"wide, with dropout", 1, 20, 2, 128, 72, 72, true, false, false, 0.1, 0, {}, 0.2},
      {"wide keys", 2, 20, 1, 72, 104, 16, true, true, true, 0.1},
      {"wide values", 2, 20, 1, 72, 16, 72, true, true, true, 0.3},
      {"documents", 1, 40, 1, 128, 16, 16, false, false, true, 0.4, 0, {16, 21}},
      {"cross", 2, 20, 1, 72, 16, 40, false, true, true, 0.3, 18, {}, 0.3},
  };
  for (const Setting& s : settings) {
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, inputs_of(s), mask);
  }
}

// The same draws: one that differs would be off by more than any rounding.
TEST(CudaSlotAttentionFast, DropsWhatTheCpuDrops) {
  const std::vector<Setting> settings{
      {"causal", 2, 70, 2, 24, 16, 16, true, true, true, 0.4, 0, {}, 0.3},
      {"documents", 1, 68, 1, 40, 16, 24, false, false, false, 0.4, 0, {20, 64}, 0.5},
      {"wide", 1, 66, 1, 16, 72, 136, false, false, true, 0.1, 0, {}, 0.2},
      {"cross", 2, 30, 2, 8, 16, 16, false, true, true, 0.3, 20, {}, 0.4},
  };
  for (const Setting& s : settings) {
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, inputs_of(s), mask);
  }
}

// As a captured graph finds it.
TEST(CudaSlotAttentionFast, ReadsTheStepOfDrawsFromTheDevice) {
  const Setting s{"", 1, 20, 1, 8, 16, 16};
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s);
  const auto variable = [&](size_t i) { return Variable(in[i].to(DType::bf16).to(kGpu)); };
  const auto o = [&](uint64_t step, const uint64_t* device_step) {
    SlotAttentionContext context;
    context.options.dropout = 0.5;
    context.options.dropout_key = {3, step, 5, device_step};
    return slot_attention_causal({variable(0), variable(1), variable(2), variable(3)}, context)
        .o.value()
        .to(Device{});
  };
  const Tensor step = Tensor::from(std::vector<int64_t>{8}, {1}, kGpu);
  const Tensor expected = o(8, nullptr);
  EXPECT_TRUE(test::same_bits(o(0, static_cast<const uint64_t*>(step.raw())), expected));
  EXPECT_FALSE(test::same_bits(o(0, nullptr), expected));
}

// Packed documents: boundaries at the edges of chunks and inside, documents of one token and of
// several chunks.
TEST(CudaSlotAttentionFast, DocumentsSeeOnlyThemselves) {
  const std::vector<int64_t> begins{40, 41, 42, 64, 66, 135};
  const std::vector<Setting> settings{
      {"causal", 2, 140, 1, 8, 16, 16, true, true, true, 0.4, 0, begins},
      {"every token its own", 1, 18, 1, 8, 16, 16, false, false, true, 0.4, 0, every_token(18)},
      {"of whole chunks", 2, 200, 1, 8, 16, 16, true, false, true, 0.4, 0, {64, 128}},
      {"wider", 1, 100, 2, 40, 40, 72, false, false, false, 0.2, 0, {50, 64}},
      {"noncausal", 2, 140, 1, 16, 16, 16, false, true, true, 0.4, 140, begins},
      {"noncausal, wider", 1, 100, 2, 24, 64, 24, false, false, false, 0.2, 100, {3, 64}},
  };
  for (const Setting& s : settings) {
    std::vector<Tensor> in = inputs_of(s);
    // Weights of one document are nothing beside those of another.
    for (int64_t t = 20; t < s.T; ++t) in[3].data<double>()[t * s.H * s.N] += t < 64 ? 90 : -60;
    in[3] = in[3].to(DType::bf16).to(DType::f64);
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, in, mask);
  }
}

TEST(CudaSlotAttentionFast, RepeatsBitForBitAndLooksAtNothingLater) {
  const Setting s{"", 1, 100, 2, 8, 16, 16};
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  std::vector<Tensor> in = inputs_of(s);
  const std::vector<Tensor> once = run(s, in, kGpu), again = run(s, in, kGpu);
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(test::same_bits(once[i].to(Device{}), again[i].to(Device{})));
  }
  const std::vector<float> before = once[0].to_vector<float>();
  for (const double logit : {5.0, 500.0}) {  // within a tile, and the beginning of another
    in[3].data<double>()[90 * 2 * 8] = logit;
    const std::vector<float> after = run(s, in, kGpu)[0].to_vector<float>();
    for (size_t i = 0; i < 90 * 2 * 16; ++i) ASSERT_EQ(before[i], after[i]);
    EXPECT_NE(before[90 * 2 * 16], after[90 * 2 * 16]);
  }
}

// One array [B,T,3,H,K] holds q, k and v: the kernels read them where they are.
TEST(CudaSlotAttentionFast, ReadsFusedProjectionsInPlace) {
  constexpr int64_t B = 2, T = 70, H = 2, K = 16, N = 8;
  const Tensor fused = random_tensor({B, T, 3, H, K}, "fused").to(DType::bf16).to(kGpu);
  const Tensor logits = random_tensor({B, T, H, N}, "logits").to(DType::bf16).to(kGpu);
  std::vector<Variable> dense;
  for (int64_t part = 0; part < 3; ++part) dense.emplace_back(test::part_of(fused, part).to(kGpu));
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Variable expected =
      slot_attention_causal({dense[0], dense[1], dense[2], Variable(logits)}, {}).o;

  const Tensor o = Tensor::empty({B, T, H, K}, DType::bf16, kGpu);
  cuda::slot_attention_fast::Forward call;
  call.q = test::part_view(fused, 0);
  call.k = test::part_view(fused, 1);
  call.v = test::part_view(fused, 2);
  call.logits = {cuda::pointer<cuda::kernel_bf16>(logits), B, T, H, N};
  call.o = {cuda::pointer<cuda::kernel_bf16>(o), B, T, H, K};
  cuda::slot_attention_fast::forward(call);
  EXPECT_TRUE(test::same_bits(o.to(Device{}), expected.value().to(Device{})));
}

}  // namespace
}  // namespace linnet
