// Listed attention: the kernels against the literal equation and against block attention, full
// finite differences, masks, refusals.
#include <algorithm>

#include "attention/primitives/block_attention/block_attention.h"
#include "autograd/grad_check.h"
#include "core/error.h"
#include "tests/attention/listed_attention_case.h"

namespace linnet {
namespace {

using test::close;
using test::ListedCase;
using test::ListedSizes;
using test::message_of;
using test::random_tensor;
using test::same_bits;

const double kInfinity = std::numeric_limits<double>::infinity();

// The reference's y and log_sum_exp.
std::pair<Tensor, Tensor> reference(const ListedCase& p) {
  const ListedSizes& s = p.s;
  const ListedAttentionContext& c = p.context;
  ListedAttentionInputs<double> in;
  in.q = {p.q.data<double>(), s.B, s.Tq, s.H, s.K};
  in.k = {p.k.data<double>(), s.B, s.Tk, s.G, s.K};
  in.v = {p.v.data<double>(), s.B, s.Tk, s.G, s.V};
  in.index = c.index.data<int32_t>();
  in.index_rows = s.index_rows;
  in.index_heads = s.index_heads;
  in.lists = c.index.size(2);
  in.length = s.length;
  if (p.bias.defined()) {
    in.bias = p.bias.data<double>();
    in.bias_rows = p.bias.size(0);
    in.bias_heads = p.bias.size(1);
  }
  if (c.query_mask.defined()) in.query_mask = c.query_mask.data<uint8_t>();
  if (c.key_mask.defined()) in.key_mask = c.key_mask.data<uint8_t>();
  if (c.place.examples.defined()) in.example_ids = c.place.examples.data<int64_t>();
  in.time_offset = c.place.time_offset;
  const Tensor y = Tensor::empty({s.B, s.Tq, s.H, s.V}, DType::f64);
  const Tensor lse = Tensor::empty({s.B, s.Tq, s.H}, DType::f64);
  listed_attention_reference(in, c.options, {y.data<double>(), s.B, s.Tq, s.H, s.V},
                             lse.data<double>());
  return {y, lse};
}

// Sizes of every kind: shared lists and own ones, groups that do and do not fill the last list,
// tiles of more than 64 queries, lists longer than a vector.
std::vector<ListedCase> cases() {
  std::vector<ListedCase> all;
  all.emplace_back();
  all.emplace_back(ListedSizes{.index_rows = 1, .index_heads = 1});
  all.emplace_back(ListedSizes{.Tq = 13, .group = 4, .index_heads = 1});
  all.emplace_back(ListedSizes{
      .B = 1, .Tq = 150, .Tk = 40, .K = 16, .V = 17, .length = 70, .group = 75, .index_rows = 1});
  all.emplace_back(
      ListedSizes{.B = 3, .Tq = 5, .H = 3, .G = 1, .length = 1, .index_rows = 1, .index_heads = 3});
  // More than two chunks of places that the CPU gathers together.
  all.emplace_back(
      ListedSizes{.B = 1, .Tq = 70, .Tk = 700, .length = 600, .group = 66, .index_rows = 1});
  // Lists that are equal, or in all but their last place, and of two chunks.
  all.emplace_back(ListedSizes{.B = 2, .Tq = 9, .Tk = 60, .length = 280, .index_heads = 4});
  int32_t* index = all.back().context.index.data<int32_t>();
  for (int64_t i = 280; i < all.back().context.index.elements(); ++i) {
    if (i % 280 < 279 && i / 280 % 2 == 0) index[i] = index[i % 280];
    if (i / 280 % 4 == 0) index[i] = index[i % 280];
  }
  all[1].mask();
  all[2].mask();
  all[5].mask();
  all[6].mask();
  all[5].add_bias(1, 4);
  all[5].drop(0.2);
  all[2].add_bias(1, 4);
  all[3].add_bias(1, 1);
  all[3].drop(0.4);
  all[4].add_bias(3, 3);
  return all;
}

TEST(ListedAttention, EqualsItsDefinition) {
  int number = 0;
  for (const ListedCase& p : cases()) {
    SCOPED_TRACE(number++);
    const auto [y, lse] = reference(p);
    const std::vector<Tensor> got = p.results(DType::f64, DType::f64);
    EXPECT_TRUE(close(got[0], y, 1e-13));
    for (int64_t i = 0; i < lse.elements(); ++i) {
      const double expected = lse.data<double>()[i], found = got[1].data<double>()[i];
      EXPECT_TRUE(found == expected || std::abs(found - expected) <= 1e-13) << i;
    }
    const std::vector<Tensor> single = p.results(DType::f32, DType::f32);
    const std::vector<Tensor> half = p.results(DType::bf16, DType::bf16);
    EXPECT_TRUE(close(single[0], y, 2e-6));
    EXPECT_TRUE(close(half[0], y, 5e-2));
    // Gradients in f32 against those in double of the same values.
    const std::vector<Tensor> exact = p.results(DType::f32, DType::f64);
    for (size_t i = 2; i < exact.size(); ++i) EXPECT_TRUE(close(single[i], exact[i], 2e-5)) << i;
  }
}

TEST(ListedAttention, GradientsOfEveryElement) {
  const auto check = [](const ListedCase& p, const std::string& what) {
    std::vector<Tensor> inputs{p.q, p.k, p.v};
    if (p.bias.defined()) inputs.push_back(p.bias);
    const GradCheckResult result = grad_check(
        [&](const std::vector<Variable>& x) {
          const ListedAttentionResult out =
              listed_attention({x[0], x[1], x[2], x.size() > 3 ? x[3] : Variable()}, p.context);
          return std::vector<Variable>{out.y, out.log_sum_exp};
        },
        inputs);
    EXPECT_TRUE(result.passed) << what << ": " << result.message;
  };
  // Every query has a key here: the log-sum-exp of none is no number to differentiate.
  const auto make = [](const ListedSizes& sizes) {
    ListedCase p(sizes);
    int32_t* index = p.context.index.data<int32_t>();
    for (int64_t i = 0; i < p.context.index.elements(); i += sizes.length) {
      index[i] = static_cast<int32_t>(i / sizes.length % sizes.Tk);
    }
    return p;
  };
  const ListedSizes small{
      .Tq = 5, .Tk = 4, .H = 2, .G = 1, .K = 3, .V = 2, .length = 4, .index_heads = 2};
  check(make(small), "lists of every query");
  ListedSizes chunks = small;
  chunks.length = 300;
  check(make(chunks), "lists of two chunks");
  ListedSizes grouped = small;
  grouped.group = 2;
  grouped.index_rows = 1;
  for (const int64_t rows : {1, 2}) {
    for (const int64_t heads : {1, 2}) {
      ListedCase p = make(grouped);
      p.bias = random_tensor({rows, heads, p.s.Tq, p.s.length}, "bias");
      p.drop(0.3);
      check(p, "shared lists, bias, dropout");
    }
  }
}

// With all keys in every list: softmax attention. A key listed n times counts n times, as a bias
// of log n does.
TEST(ListedAttention, AllKeysAreFullAttentionAndMultiplicitiesCount) {
  const ListedSizes sizes{
      .Tq = 7, .Tk = 6, .length = 6, .group = 7, .index_rows = 1, .index_heads = 1};
  ListedCase p(sizes);
  p.context.index = test::ids({5, 4, 3, 2, 1, 0}, {1, 1, 1, 6});
  BlockAttentionContext full;
  full.cross = true;
  full.options.scale = p.context.options.scale;
  const Variable expected =
      block_attention({Variable(p.q), Variable(p.k), Variable(p.v), {}, {}, {}}, full);
  EXPECT_TRUE(close(p.results(DType::f64, DType::f64)[0], expected.value(), 1e-14));

  p.context.index = test::ids({2, 0, 2, 2, -1, 0}, {1, 1, 1, 6});
  const std::vector<Tensor> counted = p.results(DType::f64, DType::f64);
  p.context.index = test::ids({-1, 0, 2, -1, -1, -1}, {1, 1, 1, 6});
  p.bias = Tensor::zeros({1, 1, 7, 6}, DType::f64);
  for (int64_t t = 0; t < 7; ++t) {
    p.bias.data<double>()[t * 6 + 1] = std::log(2.0);
    p.bias.data<double>()[t * 6 + 2] = std::log(3.0);
  }
  const std::vector<Tensor> biased = p.results(DType::f64, DType::f64);
  for (size_t i = 0; i < counted.size(); ++i) EXPECT_TRUE(close(counted[i], biased[i], 1e-13)) << i;
}

// NaN behind masks reaches nothing; masked queries and queries without a key give zeros.
TEST(ListedAttention, MaskedPositionsDoNotMatter) {
  ListedCase p;
  p.add_bias(2, 4);
  p.mask();
  const std::vector<Tensor> poisoned = p.results(DType::f64, DType::f64);
  for (const Tensor* x : {&p.q, &p.k, &p.v, &p.dy, &p.dlse}) {
    for (int64_t i = 0; i < x->elements(); ++i) {
      double& value = x->data<double>()[i];
      if (std::isnan(value)) value = 3;
    }
  }
  const std::vector<Tensor> clean = p.results(DType::f64, DType::f64);
  for (size_t i = 0; i < clean.size(); ++i) EXPECT_TRUE(same_bits(poisoned[i], clean[i])) << i;
  for (int64_t b = 0; b < p.s.B; ++b) {
    for (int64_t t = 0; t < p.s.Tq; ++t) {
      const bool masked = p.context.query_mask.data<uint8_t>()[b * p.s.Tq + t] == 0;
      if (!masked && t != 1) continue;  // list 1 is empty
      for (int64_t h = 0; h < p.s.H; ++h) {
        const int64_t number = (b * p.s.Tq + t) * p.s.H + h;
        EXPECT_EQ(clean[1].data<double>()[number], -kInfinity);
        for (int64_t c = 0; c < p.s.V; ++c) {
          EXPECT_EQ(clean[0].data<double>()[number * p.s.V + c], 0);
        }
        for (int64_t c = 0; c < p.s.K; ++c) {
          EXPECT_EQ(clean[2].data<double>()[number * p.s.K + c], 0);
        }
      }
    }
  }
}

TEST(ListedAttention, ThreadsChangeNothing) {
  ListedCase p;
  p.add_bias(1, 1);
  p.drop(0.2);
  const std::vector<Tensor> many = p.results(DType::f32, DType::f32);
  const test::Threads one(1);
  const std::vector<Tensor> alone = p.results(DType::f32, DType::f32);
  for (size_t i = 0; i < many.size(); ++i) EXPECT_TRUE(same_bits(many[i], alone[i])) << i;
}

// More threads than heads: keys are shared out.
TEST(ListedAttention, ManyThreadsFewHeadsGiveTheSameGradients) {
  for (const int64_t group : {1, 70}) {
    ListedCase p({.B = 1,
                  .Tq = 150,
                  .Tk = 200,
                  .H = 2,
                  .G = 1,
                  .K = 20,
                  .V = 33,
                  .length = 41,
                  .group = group,
                  .index_rows = 1,
                  .index_heads = 2});
    p.add_bias(1, 1);
    p.mask();
    p.drop(0.2);
    const auto with = [&](int threads) {
      const test::Threads set(threads);
      return p.results(DType::f32, DType::f32);
    };
    const std::vector<Tensor> one = with(1), four = with(4);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(four[i], one[i])) << i;
  }
}

// Their bias excludes every key of a list that others read: whatever they are given reaches
// nothing.
TEST(ListedAttention, QueriesThatSeeNothingTakeNoGradient) {
  ListedCase p(ListedSizes{.B = 1, .group = 6, .index_rows = 1});
  constexpr int64_t kBlind = 3;
  p.add_bias(1, 1);
  std::fill_n(p.bias.data<double>() + kBlind * p.s.length, p.s.length, -kInfinity);
  const auto with = [&](double given) {
    std::fill_n(p.dy.data<double>() + kBlind * p.s.H * p.s.V, p.s.H * p.s.V, given);
    std::fill_n(p.dlse.data<double>() + kBlind * p.s.H, p.s.H, given);
    return p.results(DType::f64, DType::f64);
  };
  const std::vector<Tensor> clean = with(0), poisoned = with(std::nan(""));
  for (size_t i = 0; i < clean.size(); ++i) EXPECT_TRUE(same_bits(poisoned[i], clean[i])) << i;
}

TEST(ListedAttention, NanOfAQueryIsNotHidden) {
  const ListedCase p;
  std::fill_n(p.q.data<double>(), p.s.K, std::nan(""));  // token 0, head 0
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<Tensor> out = p.results(dtype, dtype);
    const std::vector<double> y = out[0].to_vector<double>();
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_TRUE(std::isnan(out[1].to_vector<double>()[0]));
    for (auto i = static_cast<size_t>(p.s.V); i < y.size(); ++i)
      ASSERT_FALSE(std::isnan(y[i])) << i;
  }
}

TEST(ListedAttention, TakesWhatIsEmpty) {
  for (const ListedSizes& sizes : {ListedSizes{.Tq = 0}, ListedSizes{.length = 0}}) {
    const ListedCase p(sizes);
    for (const Tensor& x : p.results(DType::f32, DType::f32)) {
      if (x.shape() == Shape({p.s.B, p.s.Tq, p.s.H})) continue;  // log-sum-exp: -infinity
      EXPECT_TRUE(close(x, Tensor::zeros(x.shape(), DType::f32), 0));
    }
  }
}

TEST(ListedAttention, RefusesWhatDoesNotFit) {
  const auto message = [](const ListedCase& p) {
    return message_of<Error>([&] { p.results(DType::f32, DType::f32); });
  };
  ListedCase beyond;
  beyond.context.index.data<int32_t>()[3] = 9;
  EXPECT_EQ(message(beyond),
            "listed attention: a list names key 9, but there are 9 keys; an empty place is -1");
  beyond.context.index.data<int32_t>()[3] = -2;
  EXPECT_NE(message(beyond).find("names key -2"), std::string::npos);
  ListedCase group;
  group.context.options.group = 2;
  EXPECT_NE(message(group).find("expected index [1 or 2, 1 or 4, 6, length]"), std::string::npos);
  ListedCase bias;
  bias.bias = random_tensor({2, 3, bias.s.Tq, bias.s.length}, "bias");
  EXPECT_NE(message(bias).find("expected bias"), std::string::npos);
  ListedCase mask;
  mask.context.key_mask = Tensor::zeros({2, 3}, DType::u8);
  EXPECT_NE(message(mask).find("expected key_mask [2, 9]"), std::string::npos);
  ListedCase types;
  types.context.index = Tensor::zeros(types.context.index.shape(), DType::i64);
  EXPECT_NE(message(types).find("expected an i32 index"), std::string::npos);
}

}  // namespace
}  // namespace linnet
