// Linear attention on tensor cores with more features than a tile has, 136 to 256, which are
// computed as two parts, gives what the CPU computes in double.
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
constexpr auto kAll = test::FastKind::noncausal;

TEST(CudaLinearAttentionFastWide, Causal) {
  const LinearAttentionOptions elu{FeatureMap::elu, 0.8, Normalizer::none, 0};
  for (const Setting& s : std::vector<Setting>{
           {"136 features", kUsual, 2, 66, 2, 1, 136, 24, true, true},
           {"256, segments", kScaled, 1, 70, 1, 1, 256, 64, true, true, kCausal, 0, true},
           {"not normalised", kPlain, 1, 33, 2, 1, 200, 40, true},
           {"floored", kFloored, 1, 33, 1, 1, 144, 16, false, true},
           {"elu", elu, 1, 20, 1, 1, 136, 16, true, true},
           {"tiles of values", kUsual, 1, 33, 1, 1, 136, 136, true, true},
           {"pieces", kScaled, 1, 513, 1, 1, 136, 8, true, true}}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

TEST(CudaLinearAttentionFastWide, Noncausal) {
  for (const Setting& s : std::vector<Setting>{
           {"136 features", kUsual, 2, 66, 2, 1, 136, 24, false, true, kAll},
           {"256, segments", kScaled, 1, 70, 1, 1, 256, 64, false, true, kAll, 0, true},
           {"not normalised, cross", kPlain, 1, 33, 2, 1, 200, 40, false, true, kAll, 21},
           {"tiles of values", kFloored, 1, 33, 1, 1, 136, 136, false, true, kAll},
           {"pieces", kScaled, 1, 513, 1, 1, 136, 8, false, true, kAll}}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Each part has cosines and sines of its own columns; gradients of proportions are sums over both.
TEST(CudaLinearAttentionFastWide, Reweighted) {
  for (const Setting& s : std::vector<Setting>{
           {"144 features", kUsual, 2, 66, 2, 1, 72, 16, true, true, kCausal, 0, false, true},
           {"256, segments", kScaled, 1, 40, 1, 1, 128, 24, true, true, kCausal, 0, true, true},
           {"not normalised", kPlain, 1, 33, 1, 1, 104, 16, true, true, kCausal, 0, false, true},
           {"144, cross", kUsual, 1, 40, 2, 1, 72, 16, false, true, kAll, 66, false, true},
           {"256, noncausal", kPlain, 1, 33, 1, 1, 128, 16, false, true, kAll, 0, false, true}}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Logits of +-80, features that are all zero, one valid key.
TEST(CudaLinearAttentionFastWide, ExtremeInputsStayFinite) {
  for (const test::FastKind kind : {kCausal, kAll}) {
    test::expect_extremes_as_on_the_cpu({"", kUsual, 1, 40, 1, 1, 136, 16, false, false, kind});
    test::expect_extremes_as_on_the_cpu(
        {"", kUsual, 1, 40, 1, 1, 72, 16, false, false, kind, 0, false, true});
  }
  test::expect_the_value_of_one_key({"", kUsual, 1, 40, 1, 1, 136, 16});
}

// As in narrower heads, differences of large sums do not drown, here of sums over both parts.
TEST(CudaLinearAttentionFastWide, GradientsOfQueriesSurviveValuesWithAMean) {
  const Setting s{"", kUsual, 1, 64, 1, 1, 136, 16, true};
  std::vector<Tensor> in = inputs_of(s);
  const auto shift = [](const Tensor& x, double factor, double offset) {
    for (int64_t i = 0; i < x.elements(); ++i) {
      x.data<double>()[i] = x.data<double>()[i] * factor + offset;
    }
  };
  shift(in[2], 1, 2);
  in[2] = in[2].to(DType::bf16).to(DType::f64);
  shift(in[3], 64, 2 * 4096);  // of 4096 tokens before
  shift(in[4], 0, 4096);
  expect_what_the_cpu_computes(s, in);
}

TEST(CudaLinearAttentionFastWide, RepeatsBitForBit) {
  Setting s{"", kScaled, 1, 66, 2, 1, 72, 16, false, true, kCausal, 0, false, true};
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  for (const test::FastKind kind : {kCausal, kAll}) {
    s.kind = kind;
    const std::vector<Tensor> in = inputs_of(s);
    const std::vector<Tensor> once = run(s, in, kGpu), again = run(s, in, kGpu);
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(test::same_bits(once[i].to(Device{}), again[i].to(Device{}))) << i;
    }
  }
}

}  // namespace
}  // namespace linnet
