// Depthwise convolutions: the kernel against the literal equation, gradients against finite
// differences in every direction, carried tokens, masks with NaN behind them.
#include "attention/primitives/depthwise_conv/depthwise_conv.h"

#include "attention/primitives/block_attention/binding.h"
#include "autograd/grad_check.h"
#include "core/error.h"
#include "tests/attention/token_setting.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::TokenSetting;

// Causal and centred, a filter for each head or channel.
struct Filter {
  int64_t count, before;
  bool of_channels;
};
constexpr Filter kFilters[] = {{5, 4, false}, {5, 2, true}, {4, 1, false}, {1, 0, true}};

struct Problem {
  Tensor x, past, taps;
  Filter filter;
  BlockAttentionContext context;

  Problem(const TokenSetting& s, const Filter& f, int64_t H = 2, int64_t V = 3)
      : x(random_tensor({s.B, s.T, H, V}, "x")),
        taps(random_tensor(f.of_channels ? Shape{H, V, f.count} : Shape{H, f.count}, "taps")),
        filter(f),
        context(s.context()) {
    if (s.P > 0) past = random_tensor({s.B, s.P, H, V}, "past");
  }
  Tensor expected() const {
    const BlockAttentionTensors arrays{x, x, x, past, past, {}};
    const Tensor y = binding::empty_like(x);
    depthwise_conv_reference(
        binding::bind_block_attention<double>(arrays, context, "depthwise convolution"),
        {taps.data<double>(), filter.of_channels ? x.size(3) : 1, filter.count, filter.before},
        binding::view_of<double>(y));
    return y;
  }
  Variable run(const std::vector<Variable>& in) const {
    return depthwise_conv(in[0], in[1], in[2], filter.before, context);
  }
};

Variable leaf(const Tensor& x) {
  return x.defined() ? Variable(x, true) : Variable();
}

TEST(DepthwiseConv, IsTheLiteralEquation) {
  std::vector<TokenSetting> settings = test::token_settings();
  settings.push_back({2, 150, 0, true, true, 0});
  for (const TokenSetting& setting : settings) {
    for (const Filter& filter : kFilters) {
      SCOPED_TRACE(concat(setting.label(), ", taps ", filter.count));
      const Problem p(setting, filter, 3, 19);
      const Tensor x = test::poisoned(p.x, p.context.key_mask);
      const Tensor past = p.past.defined() ? test::poisoned(p.past, p.context.past_mask) : p.past;
      EXPECT_TRUE(
          test::close(p.run({leaf(x), leaf(past), leaf(p.taps)}).value(), p.expected(), 1e-13));
    }
  }
}

TEST(DepthwiseConv, GradientsAgreeWithFiniteDifferencesInEveryDirection) {
  for (const TokenSetting& setting : test::token_settings()) {
    for (const Filter& filter : kFilters) {
      SCOPED_TRACE(concat(setting.label(), ", taps ", filter.count));
      const Problem p(setting, filter);
      const GradCheckResult result = grad_check(
          [&](const std::vector<Variable>& in) { return std::vector<Variable>{p.run(in)}; },
          {p.x, p.past, p.taps});
      EXPECT_TRUE(result.passed) << result.message;
    }
  }
}

// A causal filter never looks ahead; a centred one does.
TEST(DepthwiseConv, OnlyCausalFiltersLeaveThePastAlone) {
  for (const Filter& filter : {Filter{5, 4, false}, Filter{5, 2, false}}) {
    Problem p({1, 12, 0, false, false, 0}, filter);
    const std::vector<double> before =
        p.run({leaf(p.x), {}, leaf(p.taps)}).value().to_vector<double>();
    p.x.data<double>()[7 * 6] += 1;
    const std::vector<double> after =
        p.run({leaf(p.x), {}, leaf(p.taps)}).value().to_vector<double>();
    const bool earlier = !std::equal(before.begin(), before.begin() + 7 * 6, after.begin());
    EXPECT_EQ(earlier, filter.before < filter.count - 1);
    EXPECT_NE(before[7 * 6], after[7 * 6]);
  }
}

TEST(DepthwiseConv, HalfPrecisionIsComputedInSingle) {
  const Problem p({2, 23, 4, true, true, 8}, kFilters[0]);
  const auto results = [&](DType dtype) {
    const auto narrow = [&](const Tensor& x) { return leaf(x.to(DType::bf16).to(dtype)); };
    const std::vector<Variable> in{narrow(p.x), narrow(p.past), narrow(p.taps)};
    const Variable y = p.run(in);
    EXPECT_EQ(y.dtype(), dtype);
    backward({y}, {Tensor::full(y.shape(), 1, dtype)});
    return std::vector<Tensor>{y.value(), in[0].grad(), in[2].grad()};
  };
  const std::vector<Tensor> narrow = results(DType::bf16), wide = results(DType::f32);
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_TRUE(test::same_bits(narrow[i], wide[i].to(DType::bf16))) << i;
  }
}

TEST(DepthwiseConv, RefusesWhatDoesNotFit) {
  const Variable x(random_tensor({1, 4, 2, 3}, "x"));
  const auto refused = [&](const Shape& taps, int64_t before) {
    return test::message_of<Error>(
        [&] { depthwise_conv(x, {}, Variable(random_tensor(taps, "taps")), before, {}); });
  };
  EXPECT_NE(refused({3, 5}, 4).find("taps [H,count]"), std::string::npos);
  EXPECT_NE(refused({2, 4, 5}, 4).find("taps [H,count]"), std::string::npos);
  EXPECT_NE(refused({2, 5}, 5).find("got number 5"), std::string::npos);
  EXPECT_EQ(refused({2, 5}, 4), "");
}

TEST(DepthwiseConv, MessagesNameIt) {
  const Variable x(Tensor::zeros({2, 4, 2, 3})), taps(Tensor::zeros({2, 3}));
  BlockAttentionContext context;
  context.key_mask = Tensor::zeros({2, 5}, DType::u8);
  const std::string message =
      test::message_of<Error>([&] { depthwise_conv(x, {}, taps, 2, context); });
  EXPECT_EQ(message.find("depthwise convolution: expected key_mask"), 0u) << message;
}

}  // namespace
}  // namespace linnet
