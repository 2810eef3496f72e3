// DiagAttention's T1: its outputs after RMSNorm.
#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kTokens = 11, kHeads = 2, kWidth = 5;

// y of the mixing alone, [1,T,H,V] in double.
std::vector<double> mixed(const std::string& parameters, double value_factor) {
  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  const auto mixer = find_mechanism("transnormer_diag")
                         .make(parse_yaml(parameters, "parameters"), options,
                               {root.child("own"), root.child("tied")});
  const auto sequence = [](const char* name, double factor) {
    return Variable(test::random_tensor({1, kTokens, kHeads, kWidth}, name, DType::f64, factor));
  };
  const MixInput input{sequence("q", 1), sequence("k", 1), sequence("v", value_factor), {}, {}};
  return dynamic_cast<const AttentionMixer&>(*mixer)
      .mix(input, {}, {})
      .y.value()
      .to_vector<double>();
}

TEST(TransnormerDiag, T1HasRootMeanSquareOne) {
  for (const bool head : {false, true}) {
    const std::vector<double> y =
        mixed(concat("{preset: t1, window: 4, norm_axis: ", head ? "head" : "model", "}"), 1);
    const size_t width = static_cast<size_t>(head ? kWidth : kHeads * kWidth);
    int ones = 0;
    for (size_t at = 0; at < y.size(); at += width) {
      double squares = 0;
      for (size_t c = 0; c < width; ++c) squares += y[at + c] * y[at + c];
      const double rms = std::sqrt(squares / static_cast<double>(width));
      // Where no weight of a block is positive there is nothing to normalise.
      EXPECT_TRUE(rms == 0 || std::abs(rms - 1) <= 1e-14) << rms;
      ones += rms != 0 ? 1 : 0;
    }
    EXPECT_GT(ones, static_cast<int>(kTokens) / 2);
  }
}

TEST(TransnormerDiag, T1DoesNotSeeTheSizeOfValues) {
  const std::vector<double> once = mixed("{weights: relu, window: 4}", 1),
                            larger = mixed("{weights: relu, window: 4}", 7);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(larger[i], once[i], 1e-14);
  EXPECT_GT(std::abs(mixed("{window: 4}", 7)[0]), 2 * std::abs(mixed("{window: 4}", 1)[0]));
}

}  // namespace
}  // namespace linnet
