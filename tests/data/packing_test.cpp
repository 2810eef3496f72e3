// Tests of the order of examples, training windows and evaluation windows.
#include "data/packing.h"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>
#include <set>

#include "core/random.h"
#include "data/permutation.h"
#include "tests/data/temporary_folder.h"
#include "tests/data/token_arrays.h"

namespace linnet {
namespace {

using test::causes_of;
using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

// A corpus of documents with the given lengths; token i of the corpus is i.
std::shared_ptr<TokenizedCorpus> corpus_of(const std::vector<int64_t>& lengths) {
  auto corpus = std::make_shared<TokenizedCorpus>();
  std::vector<int32_t> ids;
  for (const int64_t length : lengths) {
    corpus->documents.push_back({"d", static_cast<int64_t>(ids.size()), length, length});
    for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(ids.size()));
  }
  corpus->tokens = test::array_of(ids);
  return corpus;
}

TEST(Permutation, IsOneToOneForEverySizeAndDependsOnSeedAndEpoch) {
  for (const int64_t count : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = permuted_index(3, 5, i, count);
      ASSERT_TRUE(at >= 0 && at < count);
      seen.insert(at);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
  }
  const auto order = [](uint64_t seed, int64_t epoch) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < 50; ++i) indices.push_back(permuted_index(seed, epoch, i, 50));
    return indices;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_THROW(permuted_index(1, 0, 50, 50), Error);
  EXPECT_THROW(permuted_index(1, 0, 0, 0), Error);
}

TEST(Permutation, EveryPlaceIsAboutEquallyLikely) {
  // 16 cells, 4,000 epochs: 250 expected, deviation about 15.3; six deviations are never exceeded
  // by chance.
  std::vector<int> hits(16, 0);
  for (int64_t epoch = 0; epoch < 4000; ++epoch)
    ++hits[static_cast<size_t>(permuted_index(9, epoch, 3, 16))];
  for (const int count : hits) EXPECT_NEAR(count, 250, 92);
}

TEST(LmSampler, AnEpochShowsEachWindowOnceAndTargetsAreTheNextTokens) {
  const auto corpus = corpus_of({30, 13});
  const LmSampler sampler(corpus, 5, true, 7);
  ASSERT_EQ(sampler.examples_per_epoch(), 8);  // (43 - 1) / 5
  std::set<int64_t> begins;
  const Batch batch = sampler.batch(0, 8);
  EXPECT_EQ(batch.target_count, 40);
  EXPECT_TRUE(batch.segments.empty());
  EXPECT_TRUE(batch.mask.empty());
  for (int64_t row = 0; row < 8; ++row) {
    begins.insert(batch.tokens[static_cast<size_t>(row * 5)]);
    EXPECT_EQ(batch.example_ids[static_cast<size_t>(row)] * 5,
              batch.tokens[static_cast<size_t>(row * 5)]);
    for (size_t t = 0; t < 5; ++t) {
      const size_t i = static_cast<size_t>(row) * 5 + t;
      EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
      EXPECT_EQ(batch.positions[i], static_cast<int32_t>(t));
    }
  }
  EXPECT_EQ(begins, (std::set<int64_t>{0, 5, 10, 15, 20, 25, 30, 35}));
}

TEST(LmSampler, BatchesAreAPureFunctionOfTheExampleCounter) {
  const LmSampler sampler(corpus_of({100}), 3, true, 11);
  // Examples 20..43 as one batch, as four, across the epoch's edge at 33, in any order.
  const Batch whole = sampler.batch(20, 24);
  for (const int64_t part : {3, 0, 2, 1}) {
    const Batch batch = sampler.batch(20 + part * 6, 6);
    for (size_t i = 0; i < 18; ++i)
      EXPECT_EQ(batch.tokens[i], whole.tokens[static_cast<size_t>(part) * 18 + i]);
  }
  EXPECT_EQ(LmSampler(corpus_of({100}), 3, true, 11).batch(20, 24).tokens, whole.tokens);
  EXPECT_NE(LmSampler(corpus_of({100}), 3, true, 12).batch(20, 24).tokens, whole.tokens);
  // The next epoch has the same windows in another order.
  const Batch first = sampler.batch(0, 33), second = sampler.batch(33, 33);
  EXPECT_NE(first.tokens, second.tokens);
  EXPECT_EQ(std::multiset<int32_t>(first.tokens.begin(), first.tokens.end()),
            std::multiset<int32_t>(second.tokens.begin(), second.tokens.end()));
}

TEST(LmSampler, SeparateDocumentsAreSegmentsThatDoNotPredictEachOther) {
  // Documents of 4, 1, 0 and 7 tokens: one window of 10.
  const LmSampler sampler(corpus_of({4, 1, 0, 7}), 10, false, 1);
  ASSERT_EQ(sampler.examples_per_epoch(), 1);
  const Batch batch = sampler.batch(0, 1);
  EXPECT_THAT(batch.segments, ElementsAre(0, 0, 0, 0, 1, 2, 2, 2, 2, 2));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 0, 1, 2, 3, 4));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, -1, -1, 6, 7, 8, 9, 10));
  EXPECT_EQ(batch.target_count, 8);
}

TEST(LmSampler, ADocumentLongerThanTheWindowContinuesWithRestartedPositions) {
  const LmSampler sampler(corpus_of({9}), 4, false, 1);
  const Batch batch = sampler.batch(0, 2);
  EXPECT_EQ(batch.target_count, 8);
  for (const int32_t segment : batch.segments) EXPECT_EQ(segment, 0);
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
}

TEST(LmSampler, WindowsOfOneTokenDocumentsAreLeftOut) {
  // Windows of 3: 0-2 predict, 3-5 are three documents, 6-8 hold one of two, 9-11 are three.
  const auto corpus = corpus_of({3, 1, 1, 1, 0, 1, 2, 1, 1, 1, 1});
  const LmSampler apart(corpus, 3, false, 7), together(corpus, 3, true, 7);
  EXPECT_EQ(together.examples_per_epoch(), 4);
  EXPECT_EQ(together.left_out(), 0);
  EXPECT_EQ(apart.examples_per_epoch(), 2);
  EXPECT_EQ(apart.left_out(), 2);
  std::set<int64_t> ids;
  for (int64_t example = 0; example < 6; ++example) {
    const Batch batch = apart.batch(example, 1);
    EXPECT_GT(batch.target_count, 0);
    ids.insert(batch.example_ids[0]);
  }
  EXPECT_EQ(ids, (std::set<int64_t>{0, 2}));
  // A window of one token predicts nothing at the end of a document.
  EXPECT_EQ(LmSampler(corpus_of({3, 3}), 1, false, 7).left_out(), 1);
  EXPECT_EQ(causes_of<UsageError>([] {
              LmSampler(corpus_of({1, 1, 1, 1, 1}), 2, false, 1);
            }),
            "out_of_range data.train");
}

TEST(LmSampler, TooLittleTextIsRefused) {
  for (const int64_t context : {5, 0}) {
    EXPECT_EQ(causes_of<UsageError>([&] { LmSampler(corpus_of({5}), context, true, 1); }),
              "out_of_range data.context");
  }
}

// How often each token is scored, and the least context it was scored with.
struct Scores {
  std::vector<int> times;
  std::vector<int64_t> context;
};
Scores score(const TokenizedCorpus& corpus, const EvaluationSet& set, int64_t rows) {
  const auto size = static_cast<size_t>(corpus.size());
  Scores scores{std::vector<int>(size, 0), std::vector<int64_t>(size, -1)};
  int64_t targets = 0;
  for (int64_t b = 0; b < set.batches(); ++b) {
    const Batch batch = set.batch(b);
    EXPECT_LE(batch.B, rows);
    EXPECT_TRUE(batch.mask.empty());
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      if (batch.targets[i] == kNotScored) continue;
      EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
      const auto token = static_cast<size_t>(batch.targets[i]);
      ++scores.times[token];
      scores.context[token] = batch.positions[i] + 1;
    }
    targets += batch.target_count;
  }
  EXPECT_EQ(targets, set.target_count());
  return scores;
}

class EvaluationWindows : public testing::TestWithParam<std::tuple<int64_t, int64_t, bool, bool>> {
};

TEST_P(EvaluationWindows, ScoreEveryTokenOnceExceptTheFirstOfEachStream) {
  const auto [context, stride, carry, cross] = GetParam();
  if (carry && stride != 0) return;  // refused, see below
  const auto tokenizer = make_tokenizer({});
  const TokenMeasure measure(*tokenizer, false, false);
  for (const auto& lengths :
       std::vector<std::vector<int64_t>>{{100}, {1, 37, 2, 0, 60}, {8, 8, 9}}) {
    const auto corpus = corpus_of(lengths);
    const EvaluationSet set(corpus, measure, {context, stride, carry, cross, 0}, 3);
    const Scores scores = score(*corpus, set, carry ? 1 : 3);
    for (int64_t i = 0; i < corpus->size(); ++i) {
      const int64_t begin = cross ? 0 : corpus->documents[corpus->document_of(i)].begin;
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(scores.times[at], i == begin ? 0 : 1) << "token " << i;
      if (i == begin) continue;
      // A token is predicted from all that the window promises.
      const int64_t promised =
          carry ? i - begin : std::min(i - begin, stride == 0 ? 1 : context - stride + 1);
      EXPECT_GE(scores.context[at], promised) << "token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, EvaluationWindows,
                         testing::Combine(testing::Values(1, 8, 10, 64, 500), testing::Values(0, 1),
                                          testing::Bool(), testing::Bool()));

// Documents of one token have nothing to be scored, wherever they stand and however many.
TEST(EvaluationSet, DocumentsOfOneTokenChangeNothing) {
  const auto tokenizer = make_tokenizer({});
  const TokenMeasure measure(*tokenizer, false, false);
  const auto alone = corpus_of({5, 12}), among = corpus_of({1, 1, 5, 1, 0, 1, 12, 1, 1, 1});
  for (const auto& [context, stride, carry] :
       std::vector<std::tuple<int64_t, int64_t, bool>>{{1, 0, false},
                                                       {4, 0, false},
                                                       {4, 1, false},
                                                       {4, 3, false},
                                                       {99, 2, false},
                                                       {1, 0, true},
                                                       {4, 0, true}}) {
    SCOPED_TRACE(concat(context, ' ', stride, ' ', carry));
    const EvaluationSet plain(alone, measure, {context, stride, carry, false, 0}, 3),
        set(among, measure, {context, stride, carry, false, 0}, 3);
    EXPECT_EQ(set.target_count(), 15);
    EXPECT_EQ(set.windows().size(), plain.windows().size());
    const Scores scores = score(*among, set, 3);
    for (const Document& document : among->documents) {
      if (document.bytes == 1) {
        EXPECT_EQ(scores.times[static_cast<size_t>(document.begin)], 0);
      }
    }
    for (int64_t b = 0; b < set.batches(); ++b) {
      EXPECT_GT(set.batch(b).target_count, 0);
      EXPECT_EQ(set.batch(b).continues, plain.batch(b).continues);
      EXPECT_EQ(set.batch(b).positions, plain.batch(b).positions);
    }
  }
}

TEST(EvaluationSet, SizesBeyondTheCorpusChangeNothing) {
  const auto corpus = corpus_of({5, 1, 4});
  const auto tokenizer = make_tokenizer({.kind = "byte"});
  const TokenMeasure measure(*tokenizer, false, false);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const bool together : {false, true}) {
    const auto windows = [&](int64_t context, int64_t stride, int64_t tokens) {
      EvaluationOptions options;
      options.context = context;
      options.stride = stride;
      options.cross_documents = together;
      options.max_tokens = tokens;
      return EvaluationSet(corpus, measure, options, kHuge).windows();
    };
    const auto plain = windows(10, 0, 0);
    EXPECT_EQ(windows(kHuge, 0, 0), plain);
    EXPECT_EQ(windows(kHuge, kHuge, kHuge), plain);
    EXPECT_EQ(windows(kHuge, 3, kHuge - 1), plain);
    EXPECT_EQ(windows(10, 10, kHuge), plain);
  }
}

TEST(EvaluationSet, OverlapIsFairseqsBlocksOfNewTokens) {
  const auto tokenizer = make_tokenizer({});
  const TokenMeasure measure(*tokenizer, false, false);
  const EvaluationSet set(corpus_of({14}), measure, {8, 3, false, true, 0}, 1);
  EXPECT_THAT(set.windows(), ElementsAre(Window{0, 8, 0, 0, false}, Window{3, 8, 5, 0, false},
                                         Window{6, 7, 5, 0, false}));
}

TEST(EvaluationSet, CarriedStateContinuesPositionsWithinADocument) {
  const auto tokenizer = make_tokenizer({});
  const TokenMeasure measure(*tokenizer, false, false);
  const EvaluationSet set(corpus_of({10, 6}), measure, {4, 0, true, false, 0}, 8);
  ASSERT_EQ(set.batches(), 5);
  const std::vector<std::pair<bool, int32_t>> expected = {
      {false, 0}, {true, 4}, {true, 8}, {false, 0}, {true, 4}};
  for (int64_t b = 0; b < 5; ++b) {
    EXPECT_EQ(set.batch(b).continues, expected[static_cast<size_t>(b)].first) << b;
    EXPECT_EQ(set.batch(b).positions[0], expected[static_cast<size_t>(b)].second) << b;
  }
}

TEST(EvaluationSet, LimitedSetsScoreTheSameTokensForEveryContext) {
  const auto tokenizer = make_tokenizer({});
  const TokenMeasure measure(*tokenizer, false, false);
  const auto corpus = corpus_of({40, 30, 50});
  std::vector<std::vector<int>> found;
  for (const auto& [context, stride, carry] : std::vector<std::tuple<int64_t, int64_t, bool>>{
           {8, 0, false}, {32, 4, false}, {16, 0, true}}) {
    const EvaluationSet set(corpus, measure, {context, stride, carry, false, 50}, 2);
    EXPECT_EQ(set.target_count(), 50);
    found.push_back(score(*corpus, set, 2).times);
  }
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[0], found[2]);
}

TEST(EvaluationSet, BytesAndWordsAreThoseOfTheScoredTokens) {
  const auto tokenizer = make_tokenizer({});
  const TokenMeasure measure(*tokenizer, false, false);
  const std::string text = "ab cd  efg\nh ij";
  auto corpus = std::make_shared<TokenizedCorpus>();
  corpus->tokens = test::array_of(tokenizer->encode(text));
  corpus->documents = {{"d", 0, static_cast<int64_t>(text.size()), 5}};
  for (const auto& [context, stride] :
       std::vector<std::pair<int64_t, int64_t>>{{4, 0}, {5, 2}, {99, 0}}) {
    const EvaluationSet set(corpus, measure, {context, stride, false, true, 0}, 2);
    int64_t bytes = 0, words = 0;
    for (int64_t b = 0; b < set.batches(); ++b) {
      bytes += set.batch(b).scored_bytes;
      words += set.batch(b).scored_words;
    }
    EXPECT_EQ(bytes, 14);  // all but the first byte
    EXPECT_EQ(words, 4);   // all but the word that the first byte begins
  }
}

TEST(EvaluationSet, SequencesThatPositionsCannotCountAreRefused) {
  require_positions(2'147'483'647);
  EXPECT_THAT(message_of([] { require_positions(2'147'483'648); }),
              HasSubstr("a sequence of 2147483648 tokens is longer than the 2147483647 that"));
}

TEST(EvaluationSet, UnusableOptionsAreRefused) {
  const auto tokenizer = make_tokenizer({});
  const TokenMeasure measure(*tokenizer, false, false);
  const auto refusal = [&](const EvaluationOptions& options) {
    return causes_of<UsageError>([&] { EvaluationSet(corpus_of({9}), measure, options, 1); });
  };
  EXPECT_EQ(refusal({.context = 0}), "out_of_range evaluate.contexts");
  EXPECT_EQ(refusal({.context = 4, .stride = 5}), "out_of_range evaluate.stride");
  EXPECT_EQ(refusal({.context = 4, .stride = 2, .carry_state = true}), "conflict evaluate.stride");
  EXPECT_THAT(message_of<UsageError>([&] {
                EvaluationSet(corpus_of({1, 1}), measure, {}, 1);
              }),
              HasSubstr("nothing to evaluate"));
}

}  // namespace
}  // namespace linnet
