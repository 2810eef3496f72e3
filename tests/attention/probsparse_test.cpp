// ProbSparse attention beside the conformance suite: the number and the choice of exact queries.
#include "attention/probsparse/probsparse.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/conformance/subject.h"
#include "attention/probsparse/active_queries.h"
#include "attention/probsparse/active_queries_rule.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

// Kernels call the rule: where it called a function that is not constexpr, nvcc would drop the call
// in silence. Evaluated by the compiler, it cannot.
constexpr float kVectors[] = {1, -2, 3, 0.5};
constexpr active_queries_rule::Queries<float> kRule{
    4, 4, 1, 1, 1, kVectors, kVectors, nullptr, nullptr, nullptr, nullptr, nullptr, 0, {7, 1, 2}};
static_assert(kRule.sampled_key(0, 1, 0) >= 0 && kRule.sampled_key(0, 1, 0) < 4);
// Query 2 is 3, and samples two of four keys: the mean's share less the largest product.
constexpr float kFirst = 3 * kVectors[kRule.sampled_key(0, 2, 0)];
constexpr float kSecond = 3 * kVectors[kRule.sampled_key(0, 2, 1)];
static_assert(kRule.order(2) == (kFirst + kSecond) / 4 - (kFirst > kSecond ? kFirst : kSecond));

TEST(Probsparse, CountsAreThoseOfThePapers) {
  ProbsparseParams skyformer;
  skyformer.budget = 128;
  for (const auto& [length, count] : {std::pair{1024, 133}, {2048, 136}, {4096, 144}}) {
    EXPECT_EQ(probsparse_count(length, skyformer.factor_at(length)), count);
  }
  EXPECT_EQ(probsparse_count(96, 5), 25);  // Informer: 5 ceil(ln 96)
  EXPECT_EQ(probsparse_count(3, 5), 3);
  EXPECT_EQ(probsparse_count(1, 5), 1);
  EXPECT_THROW(skyformer.factor_at(0), UsageError);
}

TEST(Probsparse, PresetsSetTheFactor) {
  const Mechanism& probsparse = find_mechanism("probsparse");
  const auto option = [&](const char* preset, const char* name) {
    return probsparse.resolve(parse_yaml(concat("{preset: ", preset, "}"), "test"))
        .find(name)
        ->raw();
  };
  EXPECT_EQ(option("lavo", "factor"), "5");
  EXPECT_EQ(option("skyformer", "budget"), "128");
}

TEST(Probsparse, CausalIsRefused) {
  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = 4;
  options.heads = 2;
  options.form = Form::causal;
  EXPECT_THROW(
      find_mechanism("probsparse")
          .make(parse_yaml("{}", "test"), options, {root.child("own"), root.child("tied")}),
      UsageError);
}

// One key that only query 3 meets: over all keys, its largest product is far above the mean.
TEST(Probsparse, TheQueryThatStandsOutIsFirst) {
  constexpr int64_t T = 9;
  const Tensor q = Tensor::zeros({1, T, 1, 2}, DType::f64);
  const Tensor k = Tensor::zeros({1, T, 1, 2}, DType::f64);
  q.data<double>()[3 * 2] = 1;
  k.data<double>()[5 * 2] = 8;
  // Every query samples every key once.
  const Tensor draws = Tensor::empty({T, T}, DType::f64);
  for (int64_t i = 0; i < T * T; ++i) {
    draws.data<double>()[i] = (static_cast<double>(i % T) + 0.5) / static_cast<double>(T);
  }
  const Tensor active = active_queries(q, k, {}, draws, {}, 16);
  const std::vector<int32_t> expected{3, 0, 1, 2, 4, 5, 6, 7, 8};  // the others are equal
  EXPECT_EQ(active.to_vector<int32_t>(), expected);
}

// Cross: as many keys are sampled as the source asks for, as many queries exact as the target does.
TEST(Probsparse, AcrossSequencesEachHasItsOwnCount) {
  constexpr int64_t T = 30, S = 4, kFactor = 2;  // ceil(ln 30) = 4, ceil(ln 4) = 2
  const Tensor q = Tensor::zeros({1, T, 1, 2}, DType::f64);
  const Tensor k = Tensor::zeros({1, S, 1, 2}, DType::f64);
  const Tensor keys = Tensor::full({1, S}, 1, DType::u8);
  const Tensor queries = Tensor::full({1, T}, 1, DType::u8);
  q.data<double>()[7 * 2] = 1;
  q.data<double>()[8 * 2] = 2;  // padding
  k.data<double>()[2 * 2] = 8;
  k.data<double>()[3 * 2] = 99;  // padding
  keys.data<uint8_t>()[3] = queries.data<uint8_t>()[8] = 0;
  const Tensor draws = probsparse_draws({}, T, S, kFactor);
  EXPECT_EQ(draws.shape(), Shape({T, 4}));
  for (int64_t i = 0; i < draws.elements(); ++i) {
    draws.data<double>()[i] = (static_cast<double>(i % 4 % 3) + 0.5) / 3;
  }
  const Tensor active = active_queries(q, k, {queries, keys}, draws, {}, kFactor);
  EXPECT_EQ(active.to_vector<int32_t>(), (std::vector<int32_t>{7, 0, 1, 2, 3, 4, 5, 6}));
}

// One token alone is exact: token by token, the cross form is softmax attention.
TEST(Probsparse, AcrossSequencesTokenByTokenIsSoftmaxAttention) {
  using namespace conformance;
  constexpr int64_t T = 40, S = 30;  // 4 of 40 queries are exact in one call
  const MixerOptions options = check_options(Form::cross, 8);
  const Subject sparse(find_mechanism("probsparse"), parse_yaml("{factor: 1}", "test"), options,
                       DType::f64);
  const Subject softmax(find_mechanism("softmax"), parse_yaml("{}", "test"), options, DType::f64);
  Batch batch = random_batch(Form::cross, 2, T, S, options.width, 5);
  batch.source_mask = full_mask(2, S);
  pad_row(batch.source_mask, 0, 4, 9);
  pad_row(batch.source_mask, 1, 20, S);
  const Tensor expected = softmax.run(batch).y;
  const Result whole = sparse.run(batch);
  EXPECT_GT(largest_difference(whole.y, expected), 1e-2);
  // The rest read the state that the first call left.
  Result call;
  for (int64_t t = 0; t < T; ++t) {
    call = sparse.run(conformance::tokens_of(batch, t, t + 1), call.state);
    EXPECT_LE(largest_difference(call.y, linnet::tokens_of(expected, t, t + 1)), 1e-12) << t;
  }
  // A repeated call, from the beginning or from the encoded source, chooses the same queries.
  EXPECT_TRUE(same_bits(sparse.run(batch).y, whole.y));
  EXPECT_TRUE(same_bits(sparse.run(batch, whole.state).y, whole.y));
}

TEST(Probsparse, SamplesAreAFunctionOfTheSeedAlone) {
  const RandomKey key = RandomKey{5, 0, 0}.at("samples");
  const Tensor q = test::random_tensor({2, 50, 2, 4}, "q"),
               k = test::random_tensor({2, 50, 2, 4}, "k");
  const Tensor first = active_queries(q, k, {}, {}, key, 2);
  EXPECT_EQ(active_queries(q, k, {}, {}, key, 2).to_vector<int32_t>(), first.to_vector<int32_t>());
  const Tensor drawn = probsparse_draws(key, 50, 50, 2);
  EXPECT_EQ(active_queries(q, k, {}, drawn, {}, 2).to_vector<int32_t>(),
            first.to_vector<int32_t>());
  EXPECT_NE(active_queries(q, k, {}, {}, key.at("other"), 2).to_vector<int32_t>(),
            first.to_vector<int32_t>());
  // Equal rows of a batch sample the same keys, and so do shorter ones.
  for (int64_t i = 0; i < q.elements() / 2; ++i) {
    q.data<double>()[q.elements() / 2 + i] = q.data<double>()[i];
    k.data<double>()[k.elements() / 2 + i] = k.data<double>()[i];
  }
  const std::vector<int32_t> both = active_queries(q, k, {}, {}, key, 2).to_vector<int32_t>();
  EXPECT_TRUE(std::equal(both.begin(), both.begin() + std::ssize(both) / 2,
                         both.begin() + std::ssize(both) / 2));
}

}  // namespace
}  // namespace linnet
