// Linear attention over groups of tokens: against the literal equation, gradients against finite
// differences in every direction, carried sums, masks with NaN behind them.
#include "attention/primitives/group_prefix/group_prefix.h"

#include "autograd/grad_check.h"
#include "core/error.h"
#include "tests/attention/token_setting.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::TokenSetting;

constexpr int64_t kHeads = 2, kK = 2, kV = 3;
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
    if (s.P == 0 || options.whole) return;
    completed = random_tensor({s.B, kHeads, K, V}, "completed");
    all = random_tensor({s.B, kHeads, K, V}, "all");
  }
  bool valid(int64_t token) const {
    return !context.mask.defined() || context.mask.data<uint8_t>()[token] != 0;
  }
  int32_t position(int64_t token) const { return context.positions.data<int32_t>()[token]; }
  // Whether token t of row b sees token j, of the same call.
  bool sees(int64_t b, int64_t t, int64_t j) const {
    const int64_t T = q.size(1), group = context.options.group;
    const int64_t mine = position(b * T + t) / group, other = position(b * T + j) / group;
    return valid(b * T + j) && document(b, t) == document(b, j) &&
           (context.options.whole || other < mine);
  }
  // The number in `segments`, which differs between the documents of a row.
  int32_t document(int64_t b, int64_t t) const {
    return context.segments.defined() ? context.segments.data<int32_t>()[b * q.size(1) + t] : 0;
  }
  // The carried part that token t of row b sees: the open group is complete for later groups.
  const Tensor& carried(int64_t b, int64_t t) const {
    static const Tensor nothing;
    const int64_t first = b * q.size(1), group = context.options.group;
    if (!all.defined() || document(b, t) != document(b, 0)) return nothing;
    const bool later = position(first + t) / group > position(first) / group;
    return later || position(first) % group == 0 ? all : completed;
  }
  const double* row(const Tensor& x, int64_t b, int64_t t, int64_t h) const {
    return x.data<double>() + ((b * x.size(1) + t) * kHeads + h) * x.size(3);
  }

  // {y, completed, all}, the latter two where they are kept.
  std::vector<Tensor> expected() const {
    const int64_t B = q.size(0), T = q.size(1), K = k.size(3), V = v.size(3);
    const GroupPrefixOptions& options = context.options;
    const Tensor y = Tensor::zeros({B, T, kHeads, V}, DType::f64);
    const Tensor last = Tensor::zeros({B, kHeads, K, V}, DType::f64), total = last.clone();
    for (int64_t i = 0; i < B * T * kHeads; ++i) {
      const int64_t h = i % kHeads, t = i / kHeads % T, b = i / kHeads / T;
      if (!valid(b * T + t)) continue;
      const int64_t earlier = position(b * T + t) / options.group;
      const double weight =
          options.scale /
          (options.mean && !options.whole ? static_cast<double>(std::max<int64_t>(earlier, 1)) : 1);
      const double* query = row(q, b, t, h);
      double* out = y.data<double>() + i * V;
      for (int64_t j = 0; j < T; ++j) {
        if (!sees(b, t, j)) continue;
        double product = 0;
        for (int64_t l = 0; l < K; ++l) product += query[l] * row(k, b, j, h)[l];
        for (int64_t r = 0; r < V; ++r) out[r] += weight * product * row(v, b, j, h)[r];
      }
      const Tensor& sums = carried(b, t);
      for (int64_t c = 0; sums.defined() && c < K * V; ++c) {
        out[c % V] += weight * query[c / V] * sums.data<double>()[(b * kHeads + h) * K * V + c];
      }
    }
    if (options.whole) return {y};
    for (int64_t i = 0; i < last.elements(); ++i) {
      const int64_t r = i % V, l = i / V % K, h = i / V / K % kHeads, b = i / V / K / kHeads;
      const bool first = document(b, T - 1) == document(b, 0);
      const Tensor& sums = carried(b, T - 1);
      last.data<double>()[i] = sums.defined() ? sums.data<double>()[i] : 0;
      total.data<double>()[i] = all.defined() && first ? all.data<double>()[i] : 0;
      for (int64_t j = 0; j < T; ++j) {
        if (!valid(b * T + j) || document(b, j) != document(b, T - 1)) continue;
        const double product = row(k, b, j, h)[l] * row(v, b, j, h)[r];
        total.data<double>()[i] += product;
        if (sees(b, T - 1, j)) last.data<double>()[i] += product;
      }
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
        if (setting.T > 100 && group != 70) continue;
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
      // Means and whole documents once without and once with all that a call can have.
      if ((options.mean || options.whole) && setting.start != 8) continue;
      SCOPED_TRACE(concat(setting.label(), ", mean ", options.mean, ", whole ", options.whole));
      const Problem p(setting, options);
      const GradCheckResult result =
          grad_check([&](const std::vector<Variable>& x) { return p.run(x); }, p.inputs());
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
  const GroupPrefixContext good = p.context;
  p.context.mask = Tensor::full({2, 22}, 1, DType::u8);
  EXPECT_NE(test::message_of<Error>([&] { p.run(in); }).find("expected mask [2, 23]"),
            std::string::npos);
  p.context = good;
  p.context.segments = Tensor::zeros({2, 23}, DType::i64);
  EXPECT_NE(test::message_of<Error>([&] { p.run(in); }).find("expected segments of i32"),
            std::string::npos);
  p.context = good;
  p.context.options.whole = true;
  EXPECT_NE(test::message_of<Error>([&] { p.run(in); }).find("continue from no state"),
            std::string::npos);
  p.context = good;
  p.context.options.group = 0;
  EXPECT_THROW(p.run(in), Error);
}

}  // namespace
}  // namespace linnet
