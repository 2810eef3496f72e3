// Group memory: the kernel against the literal equation, gradients against finite differences in
// every direction, carried groups, masks with NaN behind them.
#include "attention/primitives/group_memory.h"

#include "attention/primitives/block_attention_binding.h"
#include "autograd/grad_check.h"
#include "core/error.h"
#include "tests/attention/group_memory_case.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::TokenSetting;

constexpr int64_t kHeads = 4, kKeyHeads = 2, kK = 3, kV = 2;
constexpr GroupMemoryOptions kOptions{5, 0.7};

struct Problem {
  Tensor q, k, v, past_k, past_v, memory;
  BlockAttentionContext context;

  explicit Problem(const TokenSetting& s, int64_t K = kK, int64_t V = kV)
      : q(random_tensor({s.B, s.T, kHeads, K}, "q")),
        k(random_tensor({s.B, s.T, kKeyHeads, K}, "k")),
        v(random_tensor({s.B, s.T, kKeyHeads, V}, "v")),
        context(s.context()) {
    if (s.P == 0) return;
    past_k = random_tensor({s.B, s.P, kKeyHeads, K}, "past_k");
    past_v = random_tensor({s.B, s.P, kKeyHeads, V}, "past_v");
    memory = random_tensor({s.B, kKeyHeads, K, V}, "memory");
  }
  // {y, memory}.
  std::vector<Tensor> expected(const GroupMemoryOptions& options) const {
    const binding::BlockAttentionArrays arrays{q, k, v, past_k, past_v, {}};
    const BlockAttentionInputs<double> in = binding::bind_block_attention<double>(arrays, context);
    const Tensor y = Tensor::empty({q.size(0), q.size(1), kHeads, v.size(3)}, DType::f64);
    const Tensor after = Tensor::empty({q.size(0), kKeyHeads, k.size(3), v.size(3)}, DType::f64);
    group_memory_reference(in, options, memory.defined() ? memory.data<double>() : nullptr,
                           binding::view_of<double>(y), after.data<double>());
    return {y, after};
  }
  std::vector<Variable> run(const std::vector<Variable>& x,
                            const GroupMemoryOptions& options = kOptions) const {
    const GroupMemoryResult found =
        group_memory({x[0], x[1], x[2], x[3], x[4], {}}, x[5], context, options);
    return {found.y, found.memory};
  }
  std::vector<Tensor> inputs() const { return {q, k, v, past_k, past_v, memory}; }
};

Variable leaf(const Tensor& x, DType dtype = DType::f64) {
  return x.defined() ? Variable(x.to(dtype), true) : Variable();
}

TEST(GroupMemory, IsTheLiteralEquation) {
  std::vector<TokenSetting> settings = test::token_settings();
  settings.push_back({2, 150, 0, true, true, 0});
  for (const TokenSetting& setting : settings) {
    SCOPED_TRACE(setting.label());
    for (const int64_t group : {int64_t{1}, int64_t{5}, int64_t{70}}) {
      // Where one token is a group, and nothing of it is ever open, nothing is carried.
      if (group != kOptions.group && setting.P > 0) continue;
      const GroupMemoryOptions options{group, 0.7};
      const Problem p(setting, 19, 17);
      const std::vector<Tensor> expected = p.expected(options);
      std::vector<Variable> in;
      const BlockAttentionContext& at = p.context;
      const Tensor masks[] = {at.query_mask, at.key_mask,  at.key_mask,
                              at.past_mask,  at.past_mask, {}};
      const std::vector<Tensor> all = p.inputs();
      for (size_t i = 0; i < all.size(); ++i) {
        in.push_back(all[i].defined() ? leaf(test::poisoned(all[i], masks[i])) : Variable());
      }
      const std::vector<Variable> found = p.run(in, options);
      EXPECT_TRUE(test::close(found[0].value(), expected[0], 1e-12));
      EXPECT_TRUE(test::close(found[1].value(), expected[1], 1e-12));
    }
  }
}

TEST(GroupMemory, GradientsAgreeWithFiniteDifferencesInEveryDirection) {
  for (const TokenSetting& setting : test::token_settings()) {
    SCOPED_TRACE(setting.label());
    const Problem p(setting);
    const GradCheckResult result =
        grad_check([&](const std::vector<Variable>& x) { return p.run(x); }, p.inputs());
    EXPECT_TRUE(result.passed) << result.message;
  }
}

TEST(GroupMemory, HalfPrecisionIsComputedInSingle) {
  const Problem p({2, 23, 4, true, true, 8});
  const auto results = [&](DType dtype) {
    std::vector<Variable> in;
    for (const Tensor& x : p.inputs()) in.push_back(leaf(x.to(DType::bf16), dtype));
    in[5] = leaf(p.memory, DType::f32);
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

TEST(GroupMemory, RefusesWhatDoesNotFit) {
  const Problem p({2, 23, 4, false, false, 8});
  std::vector<Variable> in;
  for (const Tensor& x : p.inputs()) in.push_back(leaf(x));
  EXPECT_THROW(p.run(in, {0, 1}), Error);
  std::vector<Variable> wrong = in;
  wrong[5] = Variable();
  EXPECT_NE(test::message_of<Error>([&] { p.run(wrong); }).find("open group"), std::string::npos);
  wrong[5] = leaf(random_tensor({2, kKeyHeads, kV, kK}, "memory"));
  EXPECT_THROW(p.run(wrong), Error);
}

}  // namespace
}  // namespace linnet
