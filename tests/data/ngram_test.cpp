// Tests of the n-gram baselines.
#include "data/ngram.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "data/text_dataset.h"
#include "tests/data_path.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

TokenizedCorpus corpus_of(const std::vector<std::string>& documents) {
  TokenizedCorpus corpus;
  std::string stored;  // a byte each, as of the byte tokenizer
  for (const std::string& text : documents) {
    const auto begin = static_cast<int64_t>(stored.size());
    corpus.documents.push_back({"d", begin, static_cast<int64_t>(text.size()), 0});
    stored += text;
  }
  corpus.tokens = TokenArray(std::move(stored), 256);
  return corpus;
}

NgramBaselines baselines(const std::vector<std::string>& train,
                         const std::vector<std::string>& held_out, bool cross = true,
                         int64_t limit = 0) {
  const auto tokenizer = make_tokenizer({});
  const TokenMeasure measure(*tokenizer, false, false);
  return ngram_baselines(corpus_of(train), corpus_of(held_out), measure, 256, cross, limit);
}

TEST(Ngram, HandComputedProbabilities) {
  // Train "aabac": a 3, b 1, c 1 of 5; a is followed by a, b, c once each, b by a.
  const double left = 0.75 * 3 / 5 / 256;
  const double a = (3 - 0.75) / 5 + left, b = (1 - 0.75) / 5 + left, z = left;
  const double b_after_a = (1 - 0.75) / 3 + 0.75 * 3 / 3 * b;
  const double z_after_b = 0.75 * 1 / 1 * z;
  const auto found = baselines({"aabac"}, {"abza"});
  EXPECT_EQ(found.unigram.tokens, 3);
  EXPECT_EQ(found.unigram.bytes, 3);
  EXPECT_NEAR(found.unigram.nll, -std::log(b) - std::log(z) - std::log(a), 1e-12);
  // After z, which was never seen, the unigram takes over.
  EXPECT_NEAR(found.bigram.nll, -std::log(b_after_a) - std::log(z_after_b) - std::log(a), 1e-12);
  EXPECT_NEAR(found.bigram.perplexity(), std::exp(found.bigram.nll / 3), 1e-12);
  EXPECT_NEAR(found.bigram.bits_per_byte(), found.bigram.nll / 3 / std::log(2.0), 1e-12);
}

TEST(Ngram, ProbabilitiesOfAllTokensAddUpToOne) {
  // Each held-out text is one context and one token: the sum runs over all 256 of them.
  for (const char context : {'a', 'b', 'c', 'z'}) {
    double unigram = 0, bigram = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = baselines({"aabacabbca"}, {{context, static_cast<char>(byte)}});
      unigram += std::exp(-found.unigram.nll);
      bigram += std::exp(-found.bigram.nll);
    }
    EXPECT_NEAR(unigram, 1, 1e-12);
    EXPECT_NEAR(bigram, 1, 1e-12) << context;
  }
}

TEST(Ngram, DocumentsAreSeparateUnlessCrossed) {
  EXPECT_EQ(baselines({"ab", "cd"}, {"abc", "d", "ef"}, false).unigram.tokens, 3);
  EXPECT_EQ(baselines({"ab", "cd"}, {"abc", "d", "ef"}, true).unigram.tokens, 5);
  EXPECT_EQ(baselines({"ab", "cd"}, {"abc", "d", "ef"}, true, 4).unigram.tokens, 4);
  EXPECT_LT(baselines({"ab", "cd"}, {"bc"}, true).bigram.nll,
            baselines({"ab", "cd"}, {"bc"}, false).bigram.nll);
  EXPECT_EQ(test::causes_of([&] { baselines({"ab"}, {"x"}); }), "out_of_range");
  EXPECT_EQ(test::causes_of([&] { baselines({}, {"xy"}); }), "out_of_range");
}

TEST(Ngram, BigramsBeatUnigramsBeatNothingOnText) {
  LINNET_REQUIRE_DATA(path, "text/tinyshakespeare_input.txt");
  DataConfig config;
  config.path = path;
  config.cache = false;
  TextDataset data(config);
  const auto found = ngram_baselines(*data.split(Split::train), *data.split(Split::test),
                                     data.measure(), 256, false);
  EXPECT_LT(found.unigram.bits_per_byte(), 5.2);
  EXPECT_LT(found.bigram.bits_per_byte(), 3.8);
  EXPECT_GT(found.bigram.bits_per_byte(), 2.5);
}

}  // namespace
}  // namespace linnet
