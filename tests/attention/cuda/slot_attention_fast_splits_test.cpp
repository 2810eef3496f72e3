// Slot attention on tensor cores cuts long sequences of few heads: into whole waves of blocks, with
// the results of whole sequences.
#include "attention/primitives/slot_attention/cuda/fast.h"

#include <cmath>

#include "tests/attention/cuda/slot_attention_fast_inputs.h"

namespace linnet {
namespace {

using namespace test::slot_attention_fast_inputs;
using test::kGpu;
namespace fast = cuda::slot_attention_fast;

// Causal, of which nothing but the sizes is looked at.
template <typename Pass>
Pass shaped(int64_t B, int64_t T, int64_t H, int64_t N, int64_t K, int64_t V) {
  Pass call;
  call.q = call.k = {nullptr, B, T, H, K};
  call.v = {nullptr, B, T, H, V};
  call.logits = {nullptr, B, T, H, N};
  return call;
}

// Unless splits would be shorter than four chunks.
void expect_whole_waves(const cuda::tensor_core::SplitSizes& sizes, int64_t tokens, int64_t blocks,
                        int64_t slots) {
  const int64_t all = sizes.count * blocks, waves = (all + slots - 1) / slots;
  EXPECT_GE(sizes.count * sizes.tokens, tokens);
  EXPECT_LT((sizes.count - 1) * sizes.tokens, tokens);
  EXPECT_TRUE(sizes.count == 1 || sizes.tokens >= 4 * 64);
  EXPECT_TRUE(10 * all >= 7 * waves * slots || sizes.tokens < 8 * 64)
      << blocks << " blocks, " << tokens << " tokens: " << sizes.count << " splits";
}

TEST(CudaSlotAttentionFastSplits, FillWavesOfBlocks) {
  constexpr int64_t kTwice = 2 * cuda::tensor_core::kMultiprocessors;
  for (const int64_t heads : {1, 8, 192}) {
    for (int64_t tokens = 256; tokens <= 65536; tokens *= 2) {
      const auto one = shaped<fast::Forward>(1, tokens, heads, 64, 64, 64);
      expect_whole_waves(fast::forward_splits(one), tokens, heads, kTwice);
      // Two tiles of values; one block on a multiprocessor.
      const auto wide = shaped<fast::Forward>(1, tokens, heads, 64, 128, 128);
      expect_whole_waves(fast::forward_splits(wide), tokens, 2 * heads, kTwice / 2);
      const auto back = shaped<fast::Backward>(1, tokens, heads, 64, 64, 64);
      expect_whole_waves(fast::backward_splits(back), tokens, heads, kTwice);
    }
  }
  // 256 blocks on 264 places.
  const auto long_text = shaped<fast::Forward>(1, 65536, 8, 64, 64, 64);
  EXPECT_EQ(fast::forward_splits(long_text).count, 32);
  EXPECT_EQ(fast::forward_splits(long_text).tokens, 2048);
  // Another wave would take longer than what is idle, with the memories that it needs.
  EXPECT_EQ(fast::forward_splits(shaped<fast::Forward>(16, 8192, 12, 64, 64, 64)).count, 1);
  // A memory is only written: nothing has to be made before. 768 blocks in three waves.
  auto memory = shaped<fast::Forward>(16, 8192, 12, 64, 64, 64);
  memory.q.T = 0;
  EXPECT_EQ(fast::forward_splits(memory).count, 4);
  auto backward = shaped<fast::Backward>(16, 8192, 12, 64, 64, 64);
  EXPECT_EQ(fast::backward_splits(backward).count, 1);
  backward.q.T = 0;
  backward.given.are = true;
  EXPECT_EQ(fast::backward_splits(backward).count, 4);
  const int32_t ids[] = {0};
  auto documents = long_text;
  documents.segments = ids;
  EXPECT_EQ(fast::forward_splits(documents).count, 1);
  auto spans = long_text;
  spans.spans = {ids, 1};
  EXPECT_EQ(fast::forward_splits(spans).count, 1);
}

// Splits of five chunks, the last one of less.
constexpr int64_t kCut = 13 * 64 + 5;

TEST(CudaSlotAttentionFastSplits, GiveWhatTheCpuComputesInDouble) {
  const std::vector<Setting> settings{
      {"wide", 1, 8 * 64 + 1, 1, 8, 72, 72, true, false, true, 0.1},
      {"many slots", 1, 8 * 64 + 9, 1, 72, 16, 16, true, false, false, 0.4},
      {"noncausal", 2, 9 * 64, 1, 16, 16, 16, false, true, true, 0.4, 9 * 64},
      {"cross, a long source", 1, 8 * 64 + 3, 1, 8, 16, 24, false, false, true, 0.3, 20},
      {"cross, many readers", 1, 40, 1, 8, 16, 16, false, false, true, 0.3, 9 * 64 + 7},
  };
  for (const Setting& s : settings) {
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, inputs_of(s), mask);
  }
}

// The root of the mean square of the error, relative to that of `exact`.
double mean_error(const Tensor& x, const Tensor& exact) {
  double error = 0, size = 0;
  for (int64_t i = 0; i < exact.elements(); ++i) {
    const double expected = exact.data<double>()[i], difference = x.data<double>()[i] - expected;
    error += difference * difference;
    size += expected * expected;
  }
  return std::sqrt(error / size);
}

// Not even rounding is worse: splits round the same values, but for the few that pass between them.
// A sequence that is one document is not cut.
TEST(CudaSlotAttentionFastSplits, AreAsGoodAsWholeSequences) {
  const auto sizes = fast::backward_splits(shaped<fast::Backward>(2, kCut, 2, 16, 16, 24));
  EXPECT_EQ(sizes.count, 3);
  EXPECT_EQ(sizes.tokens, 5 * 64);
  const std::vector<Setting> settings{
      {"two heads", 2, kCut, 2, 16, 16, 24, true, true, true, 0.3},
      {"of eight chunks", 1, 8 * 64, 1, 8, 32, 16},
      {"wide", 1, kCut, 1, 8, 72, 136, true, false, true, 0.1},
      {"many slots", 1, kCut, 1, 72, 16, 16, true, false, false, 0.4},
      {"dropout", 1, kCut, 1, 8, 16, 16, true, false, true, 0.4, 0, {}, 0.3},
  };
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  for (const Setting& s : settings) {
    SCOPED_TRACE(s.name);
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    std::vector<Tensor> in = inputs_of(s);
    if (s.masks) put_nan_behind(mask, in);
    Setting whole = s;
    whole.segments = {s.T + 1};
    const std::vector<Tensor> exact = run(s, in, Device{}, mask);
    const std::vector<Tensor> cut = run(s, in, kGpu, mask), uncut = run(whole, in, kGpu, mask);
    for (size_t i = 0; i < cut.size(); ++i) {
      std::vector<bool> infinite[3];
      const Tensor expected = finite(exact[i], infinite[0]);
      const double error = mean_error(finite(cut[i], infinite[1]), expected);
      const double before = mean_error(finite(uncut[i], infinite[2]), expected);
      EXPECT_EQ(infinite[1], infinite[0]) << i;
      EXPECT_TRUE(error <= 1.1 * before + 1e-6) << i << ": " << error << " against " << before;
    }
  }
}

TEST(CudaSlotAttentionFastSplits, RepeatBitForBit) {
  const Setting s{"", 1, kCut, 2, 8, 16, 16, true};
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s);
  const std::vector<Tensor> once = run(s, in, kGpu), again = run(s, in, kGpu);
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(test::same_bits(once[i].to(Device{}), again[i].to(Device{}))) << i;
  }
}

// Slots that are first written in a later split, or in none; splits that outweigh all before, or
// count for nothing beside them; tiles inside.
TEST(CudaSlotAttentionFastSplits, JoinMemoriesOfAnyWeight) {
  const Setting s{"", 1, kCut, 1, 8, 16, 16, false, false, true, 0.3};
  for (const double step : {60.0, -60.0}) {
    SCOPED_TRACE(step);
    std::vector<Tensor> in = inputs_of(s);
    for (int64_t i = 0; i < in[3].elements(); ++i) {
      const int64_t slot = i % s.N, token = i / s.N;
      double& logit = in[3].data<double>()[i];
      logit += step * static_cast<double>(token / 160 % 3);
      if (slot == 1 && token < 700) logit = -std::numeric_limits<double>::infinity();
      if (slot == 2) logit = -std::numeric_limits<double>::infinity();
    }
    in[3] = in[3].to(DType::bf16).to(DType::f64);
    expect_what_the_cpu_computes(s, in);
  }
}

}  // namespace
}  // namespace linnet
