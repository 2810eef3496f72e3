// S4D beside the conformance suite: initial values, presets, counts of parameters.
#include "attention/s4d/s4d.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/yaml.h"
#include "layers/rates.h"
#include "optim/groups.h"

namespace linnet {
namespace {

struct Layer {
  ParameterSet set;
  std::unique_ptr<TokenMixer> mixer;
  explicit Layer(const std::string& parameters, int64_t width = 4, Form form = Form::causal,
                 DType compute = DType::f32) {
    MixerOptions options;
    options.width = width;
    options.heads = 2;
    options.form = form;
    const ParameterScope root(set);
    mixer = find_mechanism("s4d").make(parse_yaml(parameters, "test"), options,
                                       {root.child("own"), root.child("tied")});
    set.materialize(4, DType::f32, compute);
  }
  std::vector<double> values(const std::string& name) const {
    return set.weight_of(set.find("own." + name)).to_vector<double>();
  }
};

TEST(S4d, FirstFrequenciesAreThoseOfThePaper) {
  const Layer inv("{states: 8}"), lin("{states: 8, initial: lin, shared: false}");
  const std::vector<double> found = inv.values("rates.frequency");
  ASSERT_EQ(found.size(), 4u);
  for (size_t n = 0; n < 4; ++n) {
    const double odd = 2 * static_cast<double>(n) + 1;
    EXPECT_NEAR(found[n], 8 / std::numbers::pi * (8 / odd - 1), 1e-5);
  }
  const std::vector<double> each = lin.values("rates.frequency");
  ASSERT_EQ(each.size(), 16u);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(each[i], std::numbers::pi * static_cast<double>(i % 4), 1e-5);
  }
  for (const double decay : inv.values("rates.log_decay")) {
    EXPECT_NEAR(std::exp(decay), 0.5 + 1e-4, 1e-7);
  }
}

TEST(S4d, FirstStepsLieBetweenTheirBounds) {
  const Layer layer("{step_min: 0.01, step_max: 0.02}", 64);
  double low = 1, high = 0;
  for (const double log_step : layer.values("rates.log_step")) {
    low = std::min(low, std::exp(log_step));
    high = std::max(high, std::exp(log_step));
  }
  EXPECT_TRUE(low >= 0.01 - 1e-7 && low < 0.012) << low;
  EXPECT_TRUE(high <= 0.02 + 1e-7 && high > 0.018) << high;
}

// c is complex normal, of mean square 1, times B with 2 sum |B / A|^2 = 1.
TEST(S4d, FirstReadOutsAreNormalTimesAScaledB) {
  constexpr int64_t kWidth = 256, kModes = 4;
  const auto mean_squares = [](const Layer& layer) {
    std::vector<double> squares(kModes, 0);
    const std::vector<double> c = layer.values("c");
    EXPECT_EQ(c.size(), static_cast<size_t>(8 * kWidth * kModes * 2));
    for (size_t i = 0; i < c.size(); ++i) squares[i / 2 % kModes] += c[i] * c[i] / (8 * kWidth);
    return squares;
  };
  const Layer normal("{states: 8, channels: 8}", kWidth);
  const std::vector<double> b = mean_squares(normal), w = normal.values("rates.frequency");
  double total = 0;
  for (size_t n = 0; n < kModes; ++n) total += 2 * b[n] / (0.25 + w[n] * w[n]);
  EXPECT_NEAR(total, 1, 0.1);
  for (const double square : mean_squares(Layer("{states: 8, channels: 8, b_init: one}", kWidth))) {
    EXPECT_NEAR(square, 1, 0.1);
  }
}

TEST(S4d, ParametersAreAsManyAsInLavosTables) {
  const auto count = [](const std::string& parameters, int64_t width) {
    return Layer(parameters, width).set.count();
  };
  for (const auto& [preset, c, H] : {std::tuple{"lavo", 8, 768}, {"lavo_tts", 4, 512}}) {
    const int64_t N = 64;
    EXPECT_EQ(count(concat("{preset: ", preset, "}"), H),
              c * H * N + c * H + H + N + c * H * H + H);
  }
  // Millions beyond softmax attention in the layers of its language models (122.32 before, 155.41
  // stated), speech synthesis (54.40, 55.20) and summarization (123.70, 131.59).
  const auto extra = [&](const std::string& preset, int64_t width, int64_t layers) {
    return 1e-6 *
           static_cast<double>(layers * (count(preset, width) - 4 * width * width - 4 * width));
  };
  EXPECT_NEAR(extra("{preset: lavo}", 768, 12), 155.41 - 122.32, 0.01);
  EXPECT_NEAR(extra("{preset: lavo_tts}", 512, 6), 55.20 - 54.40, 0.01);
  EXPECT_NEAR(extra("{preset: lavo}", 512, 6), 131.59 - 123.70, 0.01);
  // minimal: rates and c of every channel, d, two maps.
  EXPECT_EQ(count("{preset: minimal}", 16), 16 + 2 * 16 * 32 + 2 * 16 * 32 + 16 + 2 * 16 * 17);
}

TEST(S4d, RatesStayInSinglePrecisionAndDoNotDecay) {
  const Layer layer("{states: 8}", 4, Form::causal, DType::bf16);
  int64_t rates = 0;
  for (const ParameterSet::Entry& entry : layer.set.entries()) {
    EXPECT_EQ(entry.variable.dtype(), is_rate(entry.name) ? DType::f32 : DType::bf16) << entry.name;
    rates += is_rate(entry.name) ? 1 : 0;
    if (is_rate(entry.name)) {
      EXPECT_TRUE(exempt_from_weight_decay(entry.name)) << entry.name;
      EXPECT_TRUE(entry.variable.value().shares_storage(layer.set.weights())) << entry.name;
    }
  }
  EXPECT_EQ(rates, 3);
  EXPECT_FALSE(is_rate("own.separates.weight"));
  EXPECT_FALSE(exempt_from_weight_decay("own.separates.weight"));
}

TEST(S4d, WithSmallStepsBothDiscretizationsAgree) {
  const Tensor x = Tensor::zeros({1, 50, 4});
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.data<float>()[i] = static_cast<float>(RandomKey{}.normal(static_cast<uint64_t>(i)));
  }
  const auto run = [&](const std::string& kind, double step) {
    const Layer layer(concat("{states: 4, discretization: ", kind, ", step_min: ", step,
                             ", step_max: ", step, "}"));
    return layer.mixer->forward(Variable(x), {}, {}).y.value().to_vector<double>();
  };
  const auto difference = [&](double step) {
    const std::vector<double> a = run("zoh", step), b = run("bilinear", step);
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
  };
  const double small = difference(1e-3), large = difference(0.3);
  EXPECT_TRUE(small < 1e-4) << small;
  EXPECT_TRUE(large > 1e-2) << large;
}

std::string refusal(const std::string& parameters, Form form, int64_t rotary_width = 0) {
  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = 8;
  options.heads = 2;
  options.form = form;
  options.rotary_width = rotary_width;
  try {
    find_mechanism("s4d").make(parse_yaml(parameters, "test"), options,
                               {root.child("own"), root.child("tied")});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(S4d, RefusesWhatItCannotBe) {
  EXPECT_NE(refusal("{bidirectional: true}", Form::causal).find("no causal form"),
            std::string::npos);
  EXPECT_EQ(refusal("{bidirectional: true}", Form::noncausal), "nothing was thrown");
  EXPECT_NE(refusal("{}", Form::cross).find("no cross form"), std::string::npos);
  EXPECT_NE(refusal("{}", Form::causal, 4).find("instead of rotary"), std::string::npos);
  EXPECT_NE(refusal("{step_min: 1}", Form::causal).find("is above step_max"), std::string::npos);
  EXPECT_NE(refusal("{states: 7}", Form::causal).find("even"), std::string::npos);
}

}  // namespace
}  // namespace linnet
