// Linear attention on tensor cores with more features than a tile has, 136 to 256, which are
// computed as two parts, gives what the CPU computes in double.
#include "tests/attention/cuda/linear_attention_fast_inputs.h"

namespace linnet {
namespace {

using Setting = test::FastSetting;
using test::expect_what_the_cpu_computes;
using test::inputs_of;
using test::kFloored;
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
           {"splits", kScaled, 1, 513, 1, 1, 136, 8, true, true}}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

TEST(CudaLinearAttentionFastWide, Noncausal) {
  for (const Setting& s : std::vector<Setting>{
           {"136 features", kUsual, 2, 66, 2, 1, 136, 24, false, true, kAll},
           {"256, segments", kScaled, 1, 70, 1, 1, 256, 64, false, true, kAll, 0, true},
           {"not normalised, cross", kPlain, 1, 33, 2, 1, 200, 40, false, true, kAll, 21},
           {"tiles of values", kFloored, 1, 33, 1, 1, 136, 136, false, true, kAll},
           {"splits", kScaled, 1, 513, 1, 1, 136, 8, false, true, kAll}}) {
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
  test::expect_small_differences_of_large_sums({"", kUsual, 1, 64, 1, 1, 136, 16});
}

TEST(CudaLinearAttentionFastWide, RepeatsBitForBit) {
  for (const test::FastKind kind : {kCausal, kAll}) {
    test::expect_the_same_bits_again(
        {"", kScaled, 1, 66, 2, 1, 72, 16, false, true, kind, 0, false, true});
  }
}

}  // namespace
}  // namespace linnet
