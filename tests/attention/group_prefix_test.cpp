// Linear attention over groups of tokens: against the literal equation, gradients against finite
// differences in every direction, carried sums, masks with NaN behind them.
#include "attention/primitives/group_prefix.h"

#include "autograd/grad_check.h"
#include "core/error.h"
#include "tests/attention/token_setting.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::TokenSetting;

constexpr int64_t kHeads = 3, kK = 3, kV = 2;
constexpr GroupPrefixOptions kOptions{5, false, false, 0.7};

struct Problem {
  Tensor q, k, v, completed, all;
  GroupPrefixContext context;

  Problem(const TokenSetting& s, const GroupPrefixOptions& options, int64_t K = kK, int64_t V = kV)
      : q(random_tensor({s.B, s.T, kHeads, K}, "q")),
        k(random_tensor({s.B, s.T, kHeads, K}, "k")),
        v(random_tensor({s.B, s.T, kHeads, V}, "v")) {
    const BlockAttentionContext at = s.context();
    context = {options, at.key_mask, at.segments, at.positions};
    if (s.P == 0) return;
    completed = random_tensor({s.B, kHeads, K, V}, "completed");
    all = random_tensor({s.B, kHeads, K, V}, "all");
  }
  bool valid(int64_t token) const {
    return !context.mask.defined() || context.mask.data<uint8_t>()[token] != 0;
  }
  int32_t position(int64_t token) const { return context.positions.data<int32_t>()[token]; }
  // The first token of the document of t, in its row.
  int64_t document(int64_t b, int64_t t) const {
    const int64_t T = q.size(1);
    int64_t first = t;
    while (first > 0 && context.segments.defined() &&
           context.segments.data<int32_t>()[b * T + first - 1] ==
               context.segments.data<int32_t>()[b * T + t]) {
      --first;
    }
    return context.segments.defined() ? first : 0;
  }

  // k_l v_r of row b and head h, summed over what a token t sees.
  double seen(int64_t b, int64_t t, int64_t h, int64_t l, int64_t r) const {
    const int64_t group = context.options.group, T = q.size(1), first = document(b, t);
    const auto group_of = [&](int64_t at) { return position(b * T + at) / group; };
    double sum = 0;
    if (first == 0 && all.defined() && !context.options.whole) {
      // The open group of what is carried is complete for tokens of later groups.
      const bool later = group_of(t) > group_of(0) || position(b * T) % group == 0;
      sum = (later ? all : completed).data<double>()[place(b, h, l, r)];
    }
    for (int64_t j = first; j < T && document(b, j) == first; ++j) {
      if (!valid(b * T + j) || (!context.options.whole && group_of(j) >= group_of(t))) continue;
      sum += product(b * T + j, h, l, r);
    }
    return sum;
  }
  double product(int64_t token, int64_t h, int64_t l, int64_t r) const {
    return k.data<double>()[(token * kHeads + h) * k.size(3) + l] *
           v.data<double>()[(token * kHeads + h) * v.size(3) + r];
  }
  int64_t place(int64_t b, int64_t h, int64_t l, int64_t r) const {
    return ((b * kHeads + h) * k.size(3) + l) * v.size(3) + r;
  }

  // {y, completed, all}, the latter two where they are kept.
  std::vector<Tensor> expected() const {
    const int64_t B = q.size(0), T = q.size(1), K = k.size(3), V = v.size(3);
    const GroupPrefixOptions& options = context.options;
    const Tensor y = Tensor::zeros({B, T, kHeads, V}, DType::f64);
    const Tensor last = Tensor::zeros({B, kHeads, K, V}, DType::f64), total = last.clone();
    for (int64_t i = 0; i < y.elements(); ++i) {
      const int64_t r = i % V, h = i / V % kHeads, token = i / V / kHeads, b = token / T;
      if (!valid(token)) continue;
      const int64_t earlier = position(token) / options.group;
      const double divisor =
          options.mean && !options.whole ? static_cast<double>(std::max<int64_t>(earlier, 1)) : 1;
      for (int64_t l = 0; l < K; ++l) {
        y.data<double>()[i] += options.scale / divisor *
                               q.data<double>()[(token * kHeads + h) * K + l] *
                               seen(b, token % T, h, l, r);
      }
    }
    if (options.whole) return {y};
    for (int64_t i = 0; i < last.elements(); ++i) {
      const int64_t r = i % V, l = i / V % K, h = i / V / K % kHeads, b = i / V / K / kHeads;
      last.data<double>()[i] = seen(b, T - 1, h, l, r);
      const int64_t first = document(b, T - 1);
      double sum = first == 0 && all.defined() ? all.data<double>()[i] : 0;
      for (int64_t j = first; j < T; ++j) sum += valid(b * T + j) ? product(b * T + j, h, l, r) : 0;
      total.data<double>()[i] = sum;
    }
    return {y, last, total};
  }
  std::vector<Variable> run(const std::vector<Variable>& x) const {
    const GroupPrefixResult found = group_prefix(x[0], x[1], x[2], context, {x[3], x[4]});
    if (context.options.whole) return {found.y};
    return {found.y, found.state.completed, found.state.all};
  }
  std::vector<Tensor> inputs() const { return {q, k, v, completed, all}; }
};

Variable leaf(const Tensor& x, DType dtype = DType::f64) {
  return x.defined() ? Variable(x.to(dtype), true) : Variable();
}

// The equation of causal prefixes, of their means, and of whole documents.
std::vector<GroupPrefixOptions> all_options(int64_t group) {
  return {{group, false, false, 0.7}, {group, false, true, 0.7}, {group, true, false, 0.7}};
}

TEST(GroupPrefix, IsTheLiteralEquation) {
  std::vector<TokenSetting> settings = test::token_settings();
  settings.push_back({2, 150, 0, true, true, 0});
  for (const TokenSetting& setting : settings) {
    for (const int64_t group : {int64_t{1}, int64_t{5}, int64_t{70}}) {
      for (const GroupPrefixOptions& options : all_options(group)) {
        SCOPED_TRACE(concat(setting.label(), ", groups of ", group, ", mean ", options.mean,
                            ", whole ", options.whole));
        const Problem p(setting, options, 5, setting.T > 100 ? 70 : 4);
        const std::vector<Tensor> expected = p.expected(), all = p.inputs();
        std::vector<Variable> in;
        for (size_t i = 0; i < all.size(); ++i) {
          const bool masked = i < 3;
          in.push_back(!all[i].defined() ? Variable()
                       : masked          ? leaf(test::poisoned(all[i], p.context.mask))
                                         : leaf(all[i]));
        }
        const std::vector<Variable> found = p.run(in);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(test::close(found[i].value(), expected[i], 1e-12)) << i;
        }
      }
    }
  }
}

TEST(GroupPrefix, GradientsAgreeWithFiniteDifferencesInEveryDirection) {
  for (const TokenSetting& setting : test::token_settings()) {
    for (const GroupPrefixOptions& options : all_options(5)) {
      SCOPED_TRACE(concat(setting.label(), ", mean ", options.mean, ", whole ", options.whole));
      const Problem p(setting, options);
      std::vector<Tensor> inputs = p.inputs();
      if (options.whole) inputs[3] = inputs[4] = {};  // not read
      const GradCheckResult result =
          grad_check([&](const std::vector<Variable>& x) { return p.run(x); }, inputs);
      EXPECT_TRUE(result.passed) << result.message;
    }
  }
}

TEST(GroupPrefix, HalfPrecisionIsComputedInSingle) {
  const Problem p({2, 23, 4, true, true, 8}, kOptions);
  const auto results = [&](DType dtype) {
    std::vector<Variable> in;
    for (const Tensor& x : {p.q, p.k, p.v}) in.push_back(leaf(x.to(DType::bf16), dtype));
    for (const Tensor& x : {p.completed, p.all}) in.push_back(leaf(x, DType::f32));
    const std::vector<Variable> out = p.run(in);
    EXPECT_EQ(out[0].dtype(), dtype);
    EXPECT_EQ(out[1].dtype(), DType::f32);
    backward({out[0]}, {Tensor::full(out[0].shape(), 1, dtype)});
    return std::vector<Tensor>{out[0].value(), out[1].value(), in[1].grad(), in[3].grad()};
  };
  const std::vector<Tensor> narrow = results(DType::bf16), wide = results(DType::f32);
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_TRUE(test::same_bits(narrow[i], wide[i].to(narrow[i].dtype()))) << i;
  }
}

TEST(GroupPrefix, WithoutPositionsTokensAreCounted) {
  Problem p({2, 23, 0, false, false, 0}, kOptions);
  std::vector<Variable> in;
  for (const Tensor& x : p.inputs()) in.push_back(leaf(x));
  const Tensor given = p.run(in)[0].value();
  p.context.positions = {};
  EXPECT_TRUE(test::same_bits(p.run(in)[0].value(), given));
}

TEST(GroupPrefix, RefusesWhatDoesNotFit) {
  Problem p({2, 23, 4, false, false, 8}, kOptions);
  std::vector<Variable> in;
  for (const Tensor& x : p.inputs()) in.push_back(leaf(x));
  std::vector<Variable> wrong = in;
  wrong[3] = Variable();
  EXPECT_NE(test::message_of<Error>([&] { p.run(wrong); }).find("come with"), std::string::npos);
  wrong[3] = leaf(random_tensor({2, kHeads, kV, kK}, "completed"));
  EXPECT_THROW(p.run(wrong), Error);
  wrong = in;
  wrong[1] = leaf(random_tensor({2, 23, kHeads - 1, kK}, "k"));
  EXPECT_THROW(p.run(wrong), Error);
  p.context.options.group = 0;
  EXPECT_THROW(p.run(in), Error);
}

}  // namespace
}  // namespace linnet
