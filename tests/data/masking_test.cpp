// Masked words and the rows that hold them: rates, replacements, what a draw depends on, packing.
#include "data/masking.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "data/byte_tokenizer.h"
#include "data/masked_rows.h"
#include "data/wordpiece_tokenizer.h"
#include "tests/data/token_arrays.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

constexpr int32_t kPad = 0, kUnknown = 1, kCls = 2, kSep = 3, kMask = 4, kWords = 40;

// Ids 0 to 4 are special, 5 to 44 words.
std::unique_ptr<Tokenizer> some_tokenizer() {
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 0; i < kWords; ++i) vocabulary += concat("w", i, "\n");
  return make_wordpiece_tokenizer(vocabulary, true, "a vocabulary");
}

// Words of which every seventh is special.
std::vector<int32_t> some_row(size_t length) {
  std::vector<int32_t> row(length);
  for (size_t i = 0; i < length; ++i) {
    row[i] = i % 7 == 3 ? static_cast<int32_t>(i % 4) : 5 + static_cast<int32_t>(i * 3 % kWords);
  }
  return row;
}

struct Masked {
  std::vector<int32_t> row, positions, words;
  bool operator==(const Masked&) const = default;
};

Masked mask(const MaskingOptions& options, const RandomKey& key, uint64_t example,
            const std::vector<int32_t>& row) {
  Masked masked{row, {}, {}};
  Masking(*some_tokenizer(), options)
      .mask(key, example, masked.row, masked.positions, masked.words);
  return masked;
}

TEST(Masking, MasksWordsByTheirSharesAndNoSpecialToken) {
  const std::vector<int32_t> row = some_row(500);
  const int64_t words = std::count_if(row.begin(), row.end(), [](int32_t id) { return id > 4; });
  for (const bool per_token : {false, true}) {
    const MaskingOptions options{
        .rate = 0.15, .masked = 0.8, .random = 0.1, .per_token = per_token};
    std::map<std::string, double> counts;
    std::map<int32_t, int64_t> of_position;
    std::set<int32_t> random_words;
    std::set<size_t> sizes;
    constexpr int kTrials = 400;
    for (uint64_t example = 0; example < kTrials; ++example) {
      const Masked masked = mask(options, {7, 3, 1}, example, row);
      sizes.insert(masked.positions.size());
      EXPECT_TRUE(std::is_sorted(masked.positions.begin(), masked.positions.end()));
      for (size_t i = 0; i < masked.positions.size(); ++i) {
        const auto at = static_cast<size_t>(masked.positions[i]);
        EXPECT_EQ(masked.words[i], row[at]);
        EXPECT_GT(row[at], kMask);
        const int32_t seen = masked.row[at];
        ++counts["selected"];
        ++of_position[masked.positions[i]];
        ++counts[seen == kMask ? "masked" : seen == row[at] ? "kept" : "random"];
        if (seen != kMask && seen != row[at]) random_words.insert(seen);
      }
      // Nothing else changes.
      std::vector<int32_t> restored = masked.row;
      for (size_t i = 0; i < masked.positions.size(); ++i)
        restored[static_cast<size_t>(masked.positions[i])] = masked.words[i];
      EXPECT_EQ(restored, row);
    }
    const auto all = static_cast<double>(kTrials * words);
    // Five standard deviations.
    EXPECT_NEAR(counts["selected"] / all, 0.15, 5 * std::sqrt(0.15 * 0.85 / all));
    const double selected = counts["selected"];
    const auto expect_share = [&](const char* what, double share) {
      EXPECT_NEAR(counts[what] / selected, share, 5 * std::sqrt(share * (1 - share) / selected))
          << what;
    };
    expect_share("masked", 0.8);
    expect_share("random", 0.1 * (kWords - 1) / kWords);  // a random word may be the word itself
    expect_share("kept", 0.1 + 0.1 / kWords);
    EXPECT_EQ(random_words.size(), static_cast<size_t>(kWords));
    EXPECT_EQ(*random_words.begin(), 5);
    EXPECT_EQ(*random_words.rbegin(), 4 + kWords);
    EXPECT_EQ(of_position.size(), static_cast<size_t>(words));
    if (per_token) {
      EXPECT_GT(sizes.size(), 10u);
    } else {
      const auto fewest = static_cast<size_t>(0.15 * static_cast<double>(words));
      EXPECT_EQ(sizes, (std::set<size_t>{fewest, fewest + 1}));
    }
  }
}

TEST(Masking, DependsOnSeedEpochAndExampleAlone) {
  const std::vector<int32_t> row = some_row(200);
  for (const bool per_token : {false, true}) {
    const MaskingOptions options{.per_token = per_token};
    const Masked once = mask(options, {7, 3, 1}, 5, row);
    EXPECT_EQ(mask(options, {7, 3, 1}, 5, row), once);
    EXPECT_NE(mask(options, {8, 3, 1}, 5, row).positions, once.positions);
    EXPECT_NE(mask(options, {7, 4, 1}, 5, row).positions, once.positions);
    EXPECT_NE(mask(options, {7, 3, 1}, 6, row).positions, once.positions);
  }
  // Drawn alone, a word's fate does not depend on the words around it.
  const MaskingOptions alone{.rate = 0.3, .per_token = true};
  std::vector<int32_t> other = row;
  for (size_t i = 0; i < 100; ++i) other[i] = kUnknown;
  const Masked whole = mask(alone, {7, 3, 1}, 5, row), half = mask(alone, {7, 3, 1}, 5, other);
  const auto from = std::lower_bound(whole.positions.begin(), whole.positions.end(), 100);
  EXPECT_EQ(std::vector<int32_t>(from, whole.positions.end()), half.positions);
  EXPECT_TRUE(std::equal(whole.row.begin() + 100, whole.row.end(), half.row.begin() + 100));
}

TEST(Masking, MasksAtLeastOneWordWhereThereIsOne) {
  for (const bool per_token : {false, true}) {
    const MaskingOptions options{.rate = 1e-6, .per_token = per_token};
    EXPECT_EQ(mask(options, {1, 0, 0}, 0, {kCls, 9, 8, kSep}).positions.size(), 1u);
    EXPECT_EQ(mask(options, {1, 0, 0}, 0, {kCls, kPad, kUnknown, kSep}).positions.size(), 0u);
  }
}

TEST(Masking, PlacesHoldWhatIsMasked) {
  const auto tokenizer = some_tokenizer();
  const Masking exact(*tokenizer, {}), drawn(*tokenizer, {.per_token = true});
  EXPECT_EQ(exact.places(16, 510, 16 * 77), 16 * 77);
  EXPECT_EQ(exact.places(1, 3, 1), 8);
  // 1224 expected, 32.3 their standard deviation.
  const int64_t places = drawn.places(16, 510, 1200);
  EXPECT_GE(places, 1224 + 6 * 32);
  EXPECT_LE(places, 1224 + 7 * 33);
  EXPECT_EQ(drawn.places(16, 510, places), places);
  EXPECT_GE(drawn.places(16, 510, places + 1), places + 1);
  EXPECT_EQ(drawn.places(16, 510, 16 * 510), 16 * 510);
  EXPECT_EQ(Masking(*tokenizer, {.rate = 0.99}).places(1, 8, 8), 8);
}

TEST(Masking, NeedsAMaskToken) {
  const auto bytes = make_byte_tokenizer(true);
  EXPECT_EQ(test::causes_of<UsageError>([&] { const Masking masking(*bytes, {}); }),
            "conflict data.tokenizer.kind");
}

class RowsWithMasks : public testing::Test {
 protected:
  static constexpr int64_t kSize = 47;
  // Rows of 10 tokens, 8 of them of the corpus: five whole ones and one of 7.
  MaskedRows rows(const MaskingOptions& options = {.rate = 0.3}, int64_t context = 10) const {
    auto corpus = std::make_shared<TokenizedCorpus>();
    ids_.clear();
    for (int64_t i = 0; i < kSize; ++i) ids_.push_back(5 + static_cast<int32_t>(i % kWords));
    corpus->tokens = test::array_of(ids_, 5 + kWords);
    corpus->documents = {{"a", 0, 0, 0}, {"b", 20, 0, 0}};
    return {corpus, *tokenizer_, Masking(*tokenizer_, options), context};
  }
  // The row before its tokens were masked.
  static std::vector<int32_t> restored(const Batch& batch, int64_t row) {
    std::vector<int32_t> tokens = batch.tokens;
    for (size_t i = 0; i < batch.places.size() && batch.places[i] >= 0; ++i)
      tokens[static_cast<size_t>(batch.places[i])] = batch.targets[i];
    return {tokens.begin() + row * batch.T, tokens.begin() + (row + 1) * batch.T};
  }
  mutable std::vector<int32_t> ids_;
  std::unique_ptr<Tokenizer> tokenizer_ = some_tokenizer();
};

TEST_F(RowsWithMasks, AreTheCorpusBetweenClsAndSep) {
  const MaskedRows all = rows();
  EXPECT_EQ(all.whole_rows(), 5);
  ASSERT_EQ(all.scored_rows(), 6);
  std::vector<int32_t> seen;
  const Batch whole = all.scoring_batch(0, 5), tail = all.scoring_batch(5, 1);
  EXPECT_EQ(whole.T, 10);
  EXPECT_EQ(tail.T, 9);
  for (int64_t row = 0; row < 6; ++row) {
    const std::vector<int32_t> tokens = row < 5 ? restored(whole, row) : restored(tail, 0);
    EXPECT_EQ(tokens.front(), kCls);
    EXPECT_EQ(tokens.back(), kSep);
    seen.insert(seen.end(), tokens.begin() + 1, tokens.end() - 1);
  }
  EXPECT_EQ(seen, std::vector<int32_t>(ids_.begin(), ids_.begin() + kSize));
}

TEST_F(RowsWithMasks, NumberTheirMaskedTokens) {
  const MaskedRows all = rows();
  const Batch batch = all.scoring_batch(0, 5);
  ASSERT_EQ(batch.places.size(), batch.targets.size());
  EXPECT_EQ(batch.places.size(), 16u);  // 5 rows of at most 3 words, in eights
  int64_t scored = 0;
  for (size_t i = 0; i < batch.places.size(); ++i) {
    EXPECT_EQ(batch.places[i] < 0, batch.targets[i] == kNotScored);
    if (batch.places[i] < 0) continue;
    EXPECT_EQ(batch.place_of[static_cast<size_t>(batch.places[i])], static_cast<int32_t>(i));
    ++scored;
  }
  EXPECT_EQ(scored, batch.target_count);
  EXPECT_EQ(std::count(batch.place_of.begin(), batch.place_of.end(), -1), 50 - scored);
}

TEST_F(RowsWithMasks, OfABatchDoNotDependOnIt) {
  const MaskedRows all = rows();
  const Batch together = all.training_batch(5, 3, 4);
  for (int64_t row = 0; row < 4; ++row) {
    const Batch alone = all.training_batch(5, 3 + row, 1);
    EXPECT_TRUE(std::equal(alone.tokens.begin(), alone.tokens.end(),
                           together.tokens.begin() + row * together.T));
    EXPECT_EQ(alone.example_ids[0], together.example_ids[static_cast<size_t>(row)]);
  }
}

TEST_F(RowsWithMasks, ShowEachRowInEveryEpochWithOtherTokensMasked) {
  const MaskedRows all = rows();
  std::map<int64_t, std::vector<int32_t>> first;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const Batch batch = all.training_batch(5, epoch * 5, 5);
    std::set<int64_t> ids(batch.example_ids.begin(), batch.example_ids.end());
    EXPECT_EQ(ids.size(), 5u);
    int changed = 0;
    for (size_t row = 0; row < 5; ++row) {
      const std::vector<int32_t> tokens(
          batch.tokens.begin() + static_cast<int64_t>(row) * batch.T,
          batch.tokens.begin() + static_cast<int64_t>(row + 1) * batch.T);
      const auto [at, fresh] = first.emplace(batch.example_ids[row], tokens);
      if (!fresh && at->second != tokens) ++changed;
    }
    EXPECT_EQ(changed >= 3, epoch == 1);
  }
  EXPECT_EQ(all.scoring_batch(0, 5), all.scoring_batch(0, 5));
}

TEST_F(RowsWithMasks, WithoutRoomForAWordAreRefused) {
  EXPECT_EQ(test::causes_of<UsageError>([&] { rows({}, 2); }), "out_of_range data.context");
  EXPECT_EQ(rows({}, 3).whole_rows(), kSize);
}

}  // namespace
}  // namespace linnet
