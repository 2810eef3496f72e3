// Nystroemformer beside the conformance suite: its presets, a batch-wide norm.
#include "attention/nystromformer/nystromformer.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

std::unique_ptr<TokenMixer> mixer_of(ParameterSet& set, const std::string& parameters,
                                     int64_t heads, int64_t head_width) {
  MixerOptions options;
  options.width = heads * head_width;
  options.heads = heads;
  options.form = Form::noncausal;
  const ParameterScope root(set);
  auto mixer =
      find_mechanism("nystromformer")
          .make(parse_yaml(parameters, "test"), options, {root.child("own"), root.child("tied")});
  set.materialize(4, DType::f64, DType::f64);
  return mixer;
}

// Parameters beside the four projections.
int64_t own_parameters(const std::string& parameters, int64_t heads, int64_t head_width) {
  ParameterSet set;
  mixer_of(set, parameters, heads, head_width);
  const int64_t E = heads * head_width;
  return set.count() - 4 * (E * E + E);
}

TEST(Nystromformer, PresetsKeepTheSurveysBudget) {
  const auto landmarks = [](const std::string& preset) {
    const ConfigNode parameters = parse_yaml("{preset: " + preset + "}", "test");
    return parse_config<NystromformerParams>(find_mechanism("nystromformer").resolve(parameters))
        .landmarks;
  };
  // 4 p d + p^2 <= 4 d^2 of heads that are d wide.
  for (const auto& [preset, d] : {std::pair<std::string, int64_t>{"survey", 64},
                                  {"survey_text", 64},
                                  {"survey_vision", 64},
                                  {"survey_image", 32}}) {
    const int64_t p = landmarks(preset);
    EXPECT_EQ(2 * p, d) << preset;
    EXPECT_LE(4 * p * d + p * p, 4 * d * d) << preset;
  }
  EXPECT_EQ(landmarks("skyformer"), 128);
  EXPECT_EQ(landmarks("cab"), 16);
}

TEST(Nystromformer, HasOneFilterAHead) {
  EXPECT_EQ(own_parameters("{preset: survey}", 2, 64), 2 * 35);
  EXPECT_EQ(own_parameters("{preset: survey_text}", 2, 64), 2 * 27);
  EXPECT_EQ(own_parameters("{preset: survey_vision}", 2, 64), 2 * 13);
  EXPECT_EQ(own_parameters("{preset: survey_image}", 2, 32), 2 * 27);
  EXPECT_EQ(own_parameters("{preset: skyformer}", 2, 64), 0);
}

TEST(Nystromformer, AnEvenFilterIsRefused) {
  ParameterSet set;
  EXPECT_NE(test::message_of<UsageError>([&] {
              mixer_of(set, "{conv: 4}", 2, 4);
            }).find("conv must be odd, or 0 for none, found 4"),
            std::string::npos);
}

// CAB's code divides q and k by sqrt(K) each, the others by K^(1/4).
TEST(Nystromformer, TheLegacyScaleIsThatOfSmallerQueriesAndKeys) {
  constexpr int64_t T = 12, heads = 2, K = 4;
  const auto run = [](const std::string& scale, double factor) {
    ParameterSet set;
    const auto mixer =
        mixer_of(set, "{landmarks: 4, conv: 0, norm: batch, " + scale + "}", heads, K);
    for (const ParameterSet::Entry& entry : set.entries()) {
      if (!entry.name.starts_with("own.q.") && !entry.name.starts_with("own.k.")) continue;
      Tensor weight = set.weight_of(entry);
      for (int64_t i = 0; i < weight.elements(); ++i) weight.data<double>()[i] *= factor;
    }
    set.refresh_values();
    const Tensor x = test::random_tensor({2, T, heads * K}, "x");
    return mixer->forward(Variable(x), {}, {}).y.value().to_vector<double>();
  };
  const std::vector<double> legacy = run("legacy_scale: true", 1),
                            smaller = run("legacy_scale: false", std::pow(K, -0.25)),
                            plain = run("legacy_scale: false", 1);
  double difference = 0;
  for (size_t i = 0; i < legacy.size(); ++i) {
    EXPECT_NEAR(legacy[i], smaller[i], 1e-12) << i;
    difference = std::max(difference, std::abs(legacy[i] - plain[i]));
  }
  EXPECT_GT(difference, 1e-4);
}

// The output of the first of two rows, and whether its neighbour changes it.
TEST(Nystromformer, OnlyTheNormOfABatchCouplesRows) {
  constexpr int64_t T = 12, heads = 2, K = 4;
  for (const std::string norm : {"matrix", "batch"}) {
    ParameterSet set;
    const auto mixer = mixer_of(set, "{landmarks: 4, steps: 2, norm: " + norm + "}", heads, K);
    const auto first_row = [&](double neighbour) {
      const Tensor x = test::random_tensor({2, T, heads * K}, "x");
      for (int64_t i = T * heads * K; i < x.elements(); ++i) x.data<double>()[i] *= neighbour;
      return mixer->forward(Variable(x), {}, {}).y.value().rows(0, 1);
    };
    EXPECT_EQ(static_cast<bool>(test::same_bits(first_row(1), first_row(3))), norm == "matrix");
  }
}

}  // namespace
}  // namespace linnet
