// Block attention: kernels against the literal equation, gradients against finite differences, with
// masks, documents, carried keys, bias and dropout.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/error.h"
#include "tests/attention/block_attention_case.h"

namespace linnet {
namespace {

using test::AttentionCase;
using test::AttentionShape;
using test::worst_difference;

// The setting that a test varies, applied to a case of either precision.
struct Setting {
  const char* name;
  AttentionShape shape;
  BlockPattern pattern = BlockPattern::full;
  bool causal = false;
  int64_t left = 0, right = 0, block = 0;
  std::vector<int32_t> segments = {};
  std::vector<int64_t> starts = {};
  bool cross = false, masks = false;
  int64_t bias_heads = 0;
  double dropout = 0;
  BlockWeights weights = BlockWeights::softmax;

  std::string label() const {
    const char* kinds[] = {"",          " relu",       " relu_squared",
                           " laplace",  " collision",  " collision_exact",
                           " identity", " exponential"};
    return concat(name, masks ? " loaded" : "", kinds[static_cast<size_t>(weights)]);
  }
  template <typename T>
  void apply(AttentionCase<T>& c) const {
    c.options.pattern = pattern;
    c.options.causal = causal;
    c.options.left = left;
    c.options.right = right;
    c.options.block = block;
    c.options.dropout = dropout;
    c.options.weights = weights;
    c.options.dropout_key = {3, 1, 9};
    if (!cross) c.self(segments, starts);
    c.in.time_offset = 30;
    const int64_t reach = shape.Tk + shape.P;
    if (bias_heads > 0) c.add_bias(bias_heads, reach, 2 * reach + 1);
    if (masks) c.add_masks();
  }
};

// Every setting again with the unnormalised weights, one kind after the other.
std::vector<Setting> with_all_weights(std::vector<Setting> all) {
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    Setting other = all[i];
    constexpr BlockWeights kKinds[] = {BlockWeights::relu_squared, BlockWeights::relu,
                                       BlockWeights::laplace, BlockWeights::identity,
                                       BlockWeights::exponential};
    other.weights = kKinds[i % 5];
    all.push_back(other);
  }
  return all;
}

// Tiny shapes, all features: every direction of every gradient is checked on these.
std::vector<Setting> tiny_settings() {
  const AttentionShape plain{2, 5, 5, 2, 2, 3, 4, 0}, past{2, 4, 4, 2, 1, 3, 2, 3};
  const AttentionShape source{2, 3, 6, 2, 1, 2, 3, 0};
  const std::vector<int32_t> documents = {0, 0, 1, 1, 1, 4, 4, 4, 4, 2};
  std::vector<Setting> all = {
      {"causal", plain, BlockPattern::full, true},
      {"noncausal", plain},
      {"causal_band", plain, BlockPattern::band, true, 2},
      {"band", plain, BlockPattern::band, false, 1, 2},
      {"blocks", plain, BlockPattern::blocks, false, 0, 0, 2},
      {"causal_blocks", plain, BlockPattern::blocks, true, 0, 0, 3},
      {"documents", plain, BlockPattern::full, true, 0, 0, 0, documents},
      {"past", past, BlockPattern::full, true, 0, 0, 0, {}, {3, 2}},
      {"past_band", past, BlockPattern::band, true, 3, 0, 0, {}, {7, 1}},
      {"past_blocks", past, BlockPattern::blocks, true, 0, 0, 4, {}, {6, 5}},
      {"past_documents", past, BlockPattern::full, true, 0, 0, 0, {0, 0, 1, 1, 2, 2, 2, 2}, {9, 9}},
      {"cross", source},
  };
  all.back().cross = true;
  // Each again with masks, bias of both kinds and dropout.
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    Setting loaded = all[i];
    loaded.masks = true;
    if (!loaded.cross) loaded.bias_heads = i % 2 == 0 ? 1 : loaded.shape.H;
    loaded.dropout = i % 3 == 0 ? 0.3 : 0.0;
    all.push_back(loaded);
  }
  return with_all_weights(std::move(all));
}

// Lengths around and beyond the tile size of 64.
std::vector<Setting> long_settings() {
  const AttentionShape plain{2, 150, 150, 2, 1, 20, 33, 0}, past{1, 70, 70, 2, 2, 16, 16, 90};
  std::vector<int32_t> documents(300, 0);
  for (size_t i = 0; i < 300; ++i) documents[i] = static_cast<int32_t>(i / 66);
  std::vector<Setting> all = {
      {"causal", plain, BlockPattern::full, true},
      {"noncausal", plain},
      {"causal_band", plain, BlockPattern::band, true, 16},
      {"wide_band", plain, BlockPattern::band, false, 70, 3},
      {"blocks", plain, BlockPattern::blocks, true, 0, 0, 48},
      {"documents", plain, BlockPattern::full, true, 0, 0, 0, documents},
      {"past", past, BlockPattern::full, true, 0, 0, 0, {}, {75}},
      {"past_band", past, BlockPattern::band, true, 80, 0, 0, {}, {1000}},
      {"cross", {2, 130, 70, 2, 2, 16, 16, 0}},
      {"one_query",
       {2, 1, 1, 4, 2, 16, 16, 200},
       BlockPattern::full,
       true,
       0,
       0,
       0,
       {},
       {200, 150}},
  };
  all[8].cross = true;
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    Setting loaded = all[i];
    loaded.masks = true;
    if (!loaded.cross) loaded.bias_heads = i % 2 == 0 ? 1 : loaded.shape.H;
    loaded.dropout = i % 2 == 0 ? 0.2 : 0.0;
    all.push_back(loaded);
  }
  return with_all_weights(std::move(all));
}

// The scale of rounding: softmax weights keep results near 1, sums of others grow.
double size_of_results(const Setting& setting, const std::vector<double>& expected) {
  double largest = 1;
  if (setting.weights == BlockWeights::softmax) return largest;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  return largest;
}

TEST(BlockAttention, ForwardIsTheLiteralEquation) {
  std::vector<Setting> all = tiny_settings();
  for (const Setting& setting : long_settings()) all.push_back(setting);
  for (const Setting& setting : all) {
    SCOPED_TRACE(setting.label());
    AttentionCase<double> wide(setting.shape);
    AttentionCase<float> narrow(setting.shape);
    setting.apply(wide);
    setting.apply(narrow);
    const std::vector<double> expected = wide.reference();
    wide.poison();
    narrow.poison();
    wide.forward();
    narrow.forward();
    const double in_double = worst_difference(wide.y, expected);
    const double in_float = worst_difference(narrow.y, expected);
    const double size = size_of_results(setting, expected);
    EXPECT_TRUE(in_double <= 1e-13 * size) << in_double;
    EXPECT_TRUE(in_float <= 1e-5 * size) << in_float;
  }
}

// Every direction: dL/dx of L = sum(dy * y) by central differences of the literal equation.
void expect_gradient(const char* what, const std::vector<double>& gradient,
                     std::vector<double>& variable, const std::function<double()>& loss) {
  ASSERT_EQ(gradient.size(), variable.size()) << what;
  const double step = 1e-5;
  for (size_t i = 0; i < variable.size(); ++i) {
    const double before = variable[i];
    variable[i] = before + step;
    const double up = loss();
    variable[i] = before - step;
    const double down = loss();
    variable[i] = before;
    const double numeric = (up - down) / (2 * step);
    ASSERT_TRUE(std::abs(gradient[i] - numeric) <= 2e-9 * (1 + std::abs(numeric)))
        << what << "[" << i << "]: " << gradient[i] << ", differences give " << numeric;
  }
}

TEST(BlockAttention, GradientsAgreeWithFiniteDifferencesInEveryDirection) {
  for (const Setting& setting : tiny_settings()) {
    SCOPED_TRACE(setting.label());
    AttentionCase<double> poisoned(setting.shape), clean(setting.shape);
    setting.apply(poisoned);
    setting.apply(clean);
    poisoned.poison();
    poisoned.forward();
    poisoned.backward();
    const auto loss = [&] {
      const std::vector<double> y = clean.reference();
      double total = 0;
      for (size_t i = 0; i < y.size(); ++i) total += y[i] * clean.dy[i];
      return total;
    };
    expect_gradient("dq", poisoned.dq, clean.q, loss);
    expect_gradient("dk", poisoned.dk, clean.k, loss);
    expect_gradient("dv", poisoned.dv, clean.v, loss);
    expect_gradient("dpast_k", poisoned.dpast_k, clean.past_k, loss);
    expect_gradient("dpast_v", poisoned.dpast_v, clean.past_v, loss);
    expect_gradient("dbias", poisoned.dbias, clean.bias, loss);
  }
}

// Long cases: float gradients against double ones, which share only the template; and double ones
// in random directions against the literal equation.
TEST(BlockAttention, GradientsOfLongSequences) {
  for (const Setting& setting : long_settings()) {
    SCOPED_TRACE(setting.label());
    AttentionCase<double> wide(setting.shape), moved(setting.shape);
    AttentionCase<float> narrow(setting.shape);
    setting.apply(wide);
    setting.apply(moved);
    setting.apply(narrow);
    narrow.poison();
    wide.poison();
    wide.forward();
    wide.backward();
    narrow.forward();
    narrow.backward();
    const auto expect_rounding = [&](const std::vector<float>& got,
                                     const std::vector<double>& expected, double allowed) {
      EXPECT_TRUE(worst_difference(got, expected) <= allowed * size_of_results(setting, expected));
    };
    expect_rounding(narrow.dq, wide.dq, 1e-4);
    expect_rounding(narrow.dk, wide.dk, 1e-4);
    expect_rounding(narrow.dv, wide.dv, 1e-4);
    expect_rounding(narrow.dpast_k, wide.dpast_k, 1e-4);
    expect_rounding(narrow.dpast_v, wide.dpast_v, 1e-4);
    expect_rounding(narrow.dbias, wide.dbias, 1e-3);
    double slope = 0;
    const std::pair<std::vector<double>*, const std::vector<double>*> variables[] = {
        {&moved.q, &wide.dq},           {&moved.k, &wide.dk},           {&moved.v, &wide.dv},
        {&moved.past_k, &wide.dpast_k}, {&moved.past_v, &wide.dpast_v}, {&moved.bias, &wide.dbias}};
    const auto move = [&](double distance) {
      uint64_t site = 20;
      for (const auto& [variable, gradient] : variables) {
        const std::vector<double> direction =
            AttentionCase<double>::draws(static_cast<int64_t>(variable->size()), ++site);
        for (size_t i = 0; i < variable->size(); ++i) (*variable)[i] += distance * direction[i];
      }
    };
    uint64_t site = 20;
    for (const auto& [variable, gradient] : variables) {
      const std::vector<double> direction =
          AttentionCase<double>::draws(static_cast<int64_t>(variable->size()), ++site);
      for (size_t i = 0; i < direction.size(); ++i) slope += direction[i] * (*gradient)[i];
    }
    const auto loss = [&] {
      const std::vector<double> y = moved.reference();
      double total = 0;
      for (size_t i = 0; i < y.size(); ++i) total += y[i] * moved.dy[i];
      return total;
    };
    const double step = 1e-6;
    move(step);
    const double up = loss();
    move(-2 * step);
    const double numeric = (up - loss()) / (2 * step);
    EXPECT_TRUE(std::abs(slope - numeric) <= 1e-6 * (1 + std::abs(numeric)))
        << slope << " " << numeric;
  }
}

}  // namespace
}  // namespace linnet
