// Slot attention of given weights on tensor cores gives what the CPU computes in double: sums and
// means, of weights of both signs, in every form.
#include <algorithm>

#include "attention/primitives/slot_attention/cuda/fast.h"
#include "tests/attention/cuda/slot_attention_fast_inputs.h"

namespace linnet {
namespace {

using namespace test::slot_attention_fast_inputs;
using test::kGpu;

// Both normalizations of a setting.
std::vector<Setting> of_given(const std::vector<Setting>& settings) {
  std::vector<Setting> all;
  for (Setting s : settings) {
    s.control = SlotControl::given;
    for (const bool means : {false, true}) {
      s.means = means;
      s.floor = 0.3;  // of a few slots, whose first weights are small or negative
      all.push_back(s);
    }
  }
  return all;
}

void expect_all(const std::vector<Setting>& settings) {
  for (const Setting& s : of_given(settings)) {
    SCOPED_TRACE(s.means ? "means" : "sums");
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, inputs_of(s), mask);
  }
}

TEST(CudaSlotAttentionGiven, GivesWhatTheCpuComputesInDouble) {
  expect_all({
      {"one chunk", 1, 64, 1, 64, 64, 64, false, false, true, 0.1},
      {"a token more", 1, 65, 2, 8, 32, 24, false, false, true, 0.2},
      {"with all", 2, 130, 2, 40, 16, 16, true, true, true, 0.3},
      {"short, empty slots are read", 2, 17, 1, 24, 16, 8, true, true, false},
  });
}

TEST(CudaSlotAttentionGiven, FinishedMemoriesAreWrittenAndRead) {
  expect_all({
      {"noncausal", 2, 70, 1, 16, 16, 16, false, true, true, 0.4, 70},
      {"cross", 2, 100, 2, 8, 32, 24, false, true, true, 0.2, 20},
      {"empty slots are read", 1, 20, 1, 24, 16, 64, false, false, false, 0.4, 66},
      {"documents", 2, 100, 1, 8, 16, 16, false, true, true, 0.4, 100, {3, 64, 66}},
  });
}

TEST(CudaSlotAttentionGiven, ManySlots) {
  expect_all({
      {"a part more", 2, 20, 1, 72, 16, 16, true, true, true, 0.3},
      {"two parts, documents", 1, 66, 1, 128, 32, 24, false, false, true, 0.3, 0, {16, 21}},
      {"cross", 2, 20, 1, 136, 16, 40, false, true, false, 0.3, 18, {}, 0.3},
  });
}

TEST(CudaSlotAttentionGiven, DropsWhatTheCpuDrops) {
  expect_all({
      {"causal", 2, 70, 1, 24, 16, 16, true, true, true, 0.4, 0, {}, 0.3},
      {"cross", 1, 30, 2, 8, 16, 16, false, false, true, 0.3, 20, {}, 0.4},
  });
}

// At the edges of chunks and inside; of one token and of several chunks.
TEST(CudaSlotAttentionGiven, DocumentsSeeOnlyThemselves) {
  expect_all({
      {"causal", 2, 140, 1, 8, 16, 16, true, true, true, 0.4, 0, {40, 41, 42, 64, 66, 135}},
      {"every token its own", 1, 18, 1, 8, 16, 16, true, false, true, 0.4, 0, every_token(18)},
      {"of whole chunks", 2, 200, 1, 8, 16, 16, true, false, true, 0.2, 0, {64, 128}},
  });
}

// Splits of sequences, the last one of less; what they begin with is the same for sums.
TEST(CudaSlotAttentionGiven, SplitsOfLongSequences) {
  constexpr int64_t kCut = 8 * 64 + 5;
  const std::vector<Setting> settings{
      {"causal", 1, kCut, 1, 8, 16, 24, true, false, true, 0.2},
      {"many slots", 1, kCut, 1, 72, 16, 16, false, false, false, 0.2},
      {"cross, a long source", 1, kCut, 1, 8, 16, 24, false, false, true, 0.1, 20},
      {"cross, many readers", 1, 40, 1, 8, 16, 16, false, false, true, 0.3, kCut},
  };
  cuda::slot_attention_fast::Forward shape;
  shape.q = shape.k = shape.v = shape.logits = {nullptr, 1, kCut, 1, 8};
  shape.given.are = true;
  EXPECT_GT(cuda::slot_attention_fast::forward_splits(shape).count, 1);
  expect_all(settings);
}

// A sum below the floor is divided by the floor, which has no slope; so is a negative one.
TEST(CudaSlotAttentionGiven, SumsBelowTheFloor) {
  for (const int64_t readers : {0, 40}) {
    Setting s{"a floor", 1, 70, 1, 16, 16, 16, readers == 0, false, true, 0.4, readers};
    s.control = SlotControl::given;
    s.floor = 6;  // of some slots; of others later
    std::vector<Tensor> in = inputs_of(s);
    for (int64_t i = 0; i < in[3].elements(); ++i) {
      if (i % s.N == 1 || (i % s.N == 2 && i / s.N < 50)) in[3].data<double>()[i] *= -0.5;
    }
    in[3] = in[3].to(DType::bf16).to(DType::f64);
    expect_what_the_cpu_computes(s, in);
  }
}

// Keys and values of their own controls: two memories, of which one has values of width 0.
void expect_a_memory_without_values(int64_t tokens) {
  Setting s{"", 2, tokens, 2, 16, 16, 0, false, true, true, 0.4, 20};
  s.control = SlotControl::given;
  s.means = false;
  const std::vector<uint8_t> mask = mask_of(s.B, s.T);
  const std::vector<Tensor> tensors = inputs_of(s);
  const auto written = [&](Device device, DType computed) {
    SlotAttentionContext context;
    context.options.control = s.control;
    context.options.normalizer = SlotNormalizer::none;
    context.key_mask = Tensor::from(mask, {s.B, s.T}, device);
    std::vector<Variable> in;
    for (size_t i = 1; i < 4; ++i) {
      in.push_back(test::input_on(device, tensors[i], DType::bf16, computed));
    }
    const SlotMemory memory = slot_attention_memory({{}, in[0], in[1], in[2]}, context);
    return test::with_gradients({memory.keys, memory.mass}, {in[0], in[2]});
  };
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> got = written(kGpu, DType::bf16);
  test::expect_close_in_bf16(got, written(Device{}, DType::f64), written(Device{}, DType::bf16));
}

TEST(CudaSlotAttentionGiven, AMemoryWithoutValues) {
  expect_a_memory_without_values(66);
}

TEST(CudaSlotAttentionGiven, AMemoryWithoutValuesIsCut) {
  constexpr int64_t kTokens = 8 * 64 + 5;
  cuda::slot_attention_fast::Backward shape;
  shape.k = shape.v = shape.logits = {nullptr, 2, kTokens, 2, 16};
  shape.q = {nullptr, 2, 0, 2, 16};
  shape.given.are = true;
  EXPECT_GT(cuda::slot_attention_fast::backward_splits(shape).count, 1);
  expect_a_memory_without_values(kTokens);
}

TEST(CudaSlotAttentionGiven, RepeatsBitForBitAndLooksAtNothingLater) {
  for (const Setting& s : of_given({{"", 1, 9 * 64, 2, 8, 16, 16, true, false, true, 0.2}})) {
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    std::vector<Tensor> in = inputs_of(s);
    const std::vector<Tensor> once = run(s, in, kGpu), again = run(s, in, kGpu);
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(test::same_bits(once[i].to(Device{}), again[i].to(Device{})));
    }
    const std::vector<float> before = once[0].to_vector<float>();
    in[3].data<double>()[90 * 2 * 8] = 5;
    const std::vector<float> after = run(s, in, kGpu)[0].to_vector<float>();
    for (size_t i = 0; i < 90 * 2 * 16; ++i) ASSERT_EQ(before[i], after[i]);
    EXPECT_NE(before[90 * 2 * 16], after[90 * 2 * 16]);
  }
}

// Counts of tokens are exact, and long sums lose no bits that tensor cores would cut off.
TEST(CudaSlotAttentionGiven, CountsAndLongSumsLoseNoBits) {
  Setting s{"", 1, 2048, 1, 8, 16, 16, true};
  s.control = SlotControl::given;
  std::vector<Tensor> in = inputs_of(s);
  for (const size_t i : {size_t{1}, size_t{2}}) in[i].fill(0.3359375);
  in[3].fill(1);
  for (const size_t i : {size_t{4}, size_t{5}}) in[i].fill(3000);
  in[6].fill(1 << 22);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> got = run(s, in, kGpu), expected = run(s, in, Device{});
  EXPECT_CLOSE(got[1], expected[1], 1e-7);
  EXPECT_CLOSE(got[2], expected[2], 1e-7);
  EXPECT_EQ(got[3].to_vector<double>(), expected[3].to_vector<double>());
}

}  // namespace
}  // namespace linnet
