// Reformer: numbers of buckets, lists that can be followed by hand, presets, and what the
// conformance suite cannot hold fixed.
#include "attention/reformer/reformer.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include "attention/reformer/chunks.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using Indices = std::vector<int32_t>;

TEST(Reformer, NumbersOfBucketsAreThoseOfTheSpecification) {
  struct Row {
    int64_t tokens, chunk, first, second;
  };
  for (const Row& row :
       {Row{512, 32, 32, 1}, Row{2048, 32, 8, 16}, Row{4096, 32, 16, 16}, Row{1024, 16, 8, 16},
        Row{1024, 64, 32, 1}, Row{2048, 64, 64, 1}, Row{4096, 64, 128, 1}}) {
    const BucketFactors factors = BucketRule(row.chunk, row.tokens, 0).factors(row.tokens);
    EXPECT_EQ(factors.first, row.first) << row.tokens << " " << row.chunk;
    EXPECT_EQ(factors.second, row.second) << row.tokens << " " << row.chunk;
  }
  // A sequence whose length is no multiple of the chunk is padded; a longer one than the mixer is
  // made for has the buckets of the longest.
  EXPECT_EQ(BucketRule(32, 4096, 0).factors(481).count(), 32);
  EXPECT_EQ(BucketRule(32, 512, 0).factors(1 << 20).count(), 32);
  EXPECT_EQ(BucketRule(32, 512, 256).factors(64).count(), 256);
  // 128 buckets in one factor need more directions than the 8 x 16 of twice the length.
  EXPECT_EQ(BucketRule(64, 1 << 16, 0).directions(), 64);
}

TEST(Reformer, ABucketIsTheLargestProductWithADirectionOrItsOpposite) {
  const Tensor x = Tensor::from(std::vector<double>{3, 1, -1, 2, 1, -4, -5, 2, 7, 7}, {1, 5, 1, 2});
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 1, 1, 1, 0}, {1, 5});
  const Tensor axes = Tensor::from(std::vector<double>{1, 0, 0, 1}, {1, 2, 2});
  // Four buckets by two axes.
  EXPECT_EQ(hash_buckets(x, axes, {{1, 5, 4}, 1, mask, {}}).to_vector<int32_t>(),
            Indices({0, 1, 3, 2, 4}));
  // Two times two, limit 2: the first axis has the sign of x, the second that of y.
  const BucketRule factored(1, 1, 4);
  ASSERT_EQ(factored.factors(5).second, 2);
  EXPECT_EQ(hash_buckets(x, axes, {factored, 1, mask, {}}).to_vector<int32_t>(),
            Indices({0, 1, 2, 1, 4}));
}

// The keys that one query looks at in all rounds.
Indices keys_of(const Chunks& chunks, int64_t query) {
  const int64_t length = chunks.index.size(4);
  Indices keys;
  for (int64_t round = 0; round < chunks.order.size(0); ++round) {
    const Chunks own = chunks.of(round);
    const int64_t place = own.places.data<int32_t>()[query];
    for (int64_t t = 0; place >= 0 && t < length; ++t) {
      if (own.bias.data<double>()[place * length + t] != 0) continue;
      keys.push_back(own.index.data<int32_t>()[place / chunks.size * length + t]);
    }
  }
  return keys;
}

Chunks chunks_of(const Tensor& buckets, const ChunkContext& context) {
  return make_chunks(buckets, context, DType::f64);
}

TEST(Reformer, QueriesSeeTheirChunkAndTheOneBefore) {
  ChunkContext at;
  at.chunk = 2;
  // In order of buckets and time: 1 3 | 0 2 | 4 -
  const Tensor buckets = test::ids({1, 0, 1, 0, 1}, {1, 5, 1, 1});
  const Chunks chunks = chunks_of(buckets, at);
  EXPECT_EQ(chunks.order.to_vector<int32_t>(), Indices({1, 3, 0, 2, 4, -1}));
  EXPECT_EQ(chunks.places.to_vector<int32_t>(), Indices({2, 0, 3, 1, 4}));
  EXPECT_EQ(chunks.index.to_vector<int32_t>(),
            Indices({4, -1, 1, 3, 1, 3, 0, 2, 0, 2, 4, -1}));  // the first follows the last one
  EXPECT_EQ(keys_of(chunks, 0), Indices({1, 3, 2}));
  EXPECT_EQ(keys_of(chunks, 4), Indices({0, 2}));
  EXPECT_EQ(keys_of(chunks, 1), Indices({4, 3}));
  at.causal = true;
  EXPECT_EQ(keys_of(chunks_of(buckets, at), 2), Indices({1, 0}));
  EXPECT_EQ(keys_of(chunks_of(buckets, at), 0), Indices({}));  // its own value is all that it gets
  at.causal = false;
  at.mask = Tensor::from(std::vector<uint8_t>{1, 1, 1, 1, 0}, {1, 5});
  EXPECT_EQ(keys_of(chunks_of(test::ids({1, 0, 1, 0, 9}, {1, 5, 1, 1}), at), 1), Indices({3}));
  EXPECT_EQ(keys_of(chunks_of(buckets, at), 4), Indices({}));
}

TEST(Reformer, KeysCountAsOftenAsTheyAreMetUnlessToldOtherwise) {
  ChunkContext at;
  at.chunk = 2;
  // Two equal rounds, 0 1 | 2 3 | 0 1 | 2 3: all meet twice in their chunk, twice in the others.
  const Tensor buckets = test::ids({0, 0, 0, 0, 1, 1, 1, 1}, {1, 4, 1, 2});
  EXPECT_EQ(keys_of(chunks_of(buckets, at), 0), Indices({2, 3, 1, 2, 3, 1}));
  at.dedup = true;
  EXPECT_EQ(keys_of(chunks_of(buckets, at), 0), Indices({2, 3, 1}));
  // 0 1 | 2 3 | 0 3 | 1 2: token 0 meets 1 twice in its first list, 3 in its second, 2 in both.
  const Tensor others = test::ids({0, 0, 0, 1, 1, 1, 1, 0}, {1, 4, 1, 2});
  EXPECT_EQ(keys_of(chunks_of(others, at), 0), Indices({1, 2, 3}));
}

// Small documents share chunks; larger ones have chunks of their own and never meet.
TEST(Reformer, DocumentsAreSequencesOfTheirOwn) {
  ChunkContext at;
  at.chunk = 3;
  const Tensor segments = test::ids({0, 1, 2, 2, 2, 2, 3, 4, 4}, {1, 9});
  at.spans = document_spans(segments);
  const Chunks chunks = chunks_of(test::ids(Indices(9, 0), {1, 9, 1, 1}), at);
  EXPECT_EQ(chunks.order.to_vector<int32_t>(),
            Indices({0, 1, -1, 2, 3, 4, 5, 6, -1, 7, 8, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(keys_of(chunks, 0), Indices({}));
  EXPECT_EQ(keys_of(chunks, 2), Indices({5, 3, 4}));  // the first follows its document's last one
  EXPECT_EQ(keys_of(chunks, 5), Indices({2, 3, 4}));
  EXPECT_EQ(keys_of(chunks, 6), Indices({}));
  EXPECT_EQ(keys_of(chunks, 8), Indices({7}));
}

struct Call {
  ParameterSet set;
  std::unique_ptr<TokenMixer> mixer;
  Variable x;
  MixerContext context;
  CallDraws record;

  Call(const std::string& parameters, Form form, int64_t T) {
    MixerOptions options;
    options.width = 8;
    options.heads = 2;
    options.form = form;
    options.max_length = 64;
    const ParameterScope root(set);
    mixer =
        find_mechanism("reformer")
            .make(parse_yaml(parameters, "test"), options, {root.child("own"), root.child("tied")});
    set.materialize(4, DType::f64, DType::f64);
    x = Variable(test::random_tensor({2, T, 8}, "x"));
    context.record = &record;
  }
  Tensor operator()() const { return mixer->forward(x, context, {}).y.value(); }
};

TEST(Reformer, LaterTokensChangeNothingWhereBucketsAreHeld) {
  constexpr int64_t kTokens = 30, kChanged = 17;
  Call call("{chunk: 4, hashes: 2}", Form::causal, kTokens);
  const Tensor before = call();
  call.record.given_choices = call.record.choices;
  const Tensor changed = call.x.value().clone();
  for (int64_t b = 0; b < 2; ++b) {
    double* row = changed.data<double>() + b * kTokens * 8;
    std::fill(row + kChanged * 8, row + kTokens * 8, 1.5);
  }
  call.x = Variable(changed);
  const Tensor after = call();
  for (int64_t i = 0; i < before.elements(); ++i) {
    const bool same = before.data<double>()[i] == after.data<double>()[i];
    if (i / 8 % kTokens < kChanged) {
      EXPECT_TRUE(same) << i;
    }
  }
  EXPECT_FALSE(test::same_bits(before, after));
}

TEST(Reformer, ManyRoundsComeToAttentionOfAllToAll) {
  const Tensor all = Call("{chunk: 24}", Form::noncausal, 24)();
  const auto distance = [&](int64_t hashes) {
    const Tensor y =
        Call(concat("{chunk: 4, dedup: true, hashes: ", hashes, "}"), Form::noncausal, 24)();
    double squares = 0;
    for (int64_t i = 0; i < y.elements(); ++i) {
      squares += std::pow(y.data<double>()[i] - all.data<double>()[i], 2);
    }
    return std::sqrt(squares);
  };
  EXPECT_GT(distance(1), 0.1);
  EXPECT_LT(distance(8), 0.5 * distance(1));
  EXPECT_LT(distance(64), 1e-12);  // every pair has met
}

TEST(Reformer, HasOneMapForQueriesAndKeysAndABiasOnTheOutputAlone) {
  Call call("{preset: survey}", Form::noncausal, 4);
  EXPECT_EQ(call.set.count(), 3 * 8 * 8 + 8);
  // The survey's budget: 2 l c keys per query, l c = d.
  for (const auto& [preset, width] : {std::pair("survey", 64), std::pair("survey_image", 32)}) {
    const auto options = parse_yaml(concat("{preset: ", preset, "}"), "test");
    const ConfigNode resolved = find_mechanism("reformer").resolve(options);
    EXPECT_EQ(std::stoi(resolved.find("hashes")->raw()) * std::stoi(resolved.find("chunk")->raw()),
              width);
  }
}

TEST(Reformer, BucketsThatAreNoPowerOfTwoAreRefused) {
  try {
    const Call call("{buckets: 48}", Form::noncausal, 4);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("power of two, found 48; take 32"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace linnet
