// Examples of like lengths in one batch: which order they come in, and how far rows are padded.
#include "data/like_lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/random.h"
#include "data/classification.h"

namespace linnet {
namespace {

std::vector<int64_t> some_lengths(int64_t count, int64_t longest) {
  const RandomKey key{11, 0, 0};
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    const double u = key.uniform(static_cast<uint64_t>(i));
    lengths.push_back(1 + static_cast<int64_t>(u * u * static_cast<double>(longest - 1)));
  }
  return lengths;
}

// Sums of lengths as they are, and as batches of `rows` pad them.
std::pair<int64_t, int64_t> tokens_of_epoch(const ClassificationSampler& sampler, int64_t rows) {
  int64_t valid = 0, padded = 0;
  for (int64_t first = 0; first + rows <= sampler.examples_per_epoch(); first += rows) {
    const Batch batch = sampler.batch(first, rows);
    valid += std::count(batch.mask.begin(), batch.mask.end(), uint8_t{1});
    padded += batch.B * batch.T;
  }
  return {valid, padded};
}

std::shared_ptr<const ClassificationSplit> split_of(const std::vector<int64_t>& lengths) {
  auto split = std::make_shared<ClassificationSplit>();
  for (size_t i = 0; i < lengths.size(); ++i) {
    split->add(std::vector<int32_t>(static_cast<size_t>(lengths[i]), 1 + static_cast<int32_t>(i)),
               static_cast<int32_t>(i % 2));
  }
  return split;
}

TEST(LikeLengthOrder, EveryEpochHasEachExampleOnce) {
  for (const int64_t count : {1, 2, 7, 100, 1000}) {
    for (const int64_t together : {1, 3, 8, 64, 2000}) {
      const LikeLengthOrder order(some_lengths(count, 50), together, 3);
      for (int64_t epoch = 0; epoch < 4; ++epoch) {
        std::set<int64_t> seen;
        for (int64_t i = 0; i < count; ++i) seen.insert(order.example(epoch * count + i));
        EXPECT_EQ(std::ssize(seen), count) << count << " in blocks of " << together;
        EXPECT_EQ(*seen.begin(), 0);
        EXPECT_EQ(*seen.rbegin(), count - 1);
      }
    }
  }
}

TEST(LikeLengthOrder, IsAFunctionOfSeedAndPlaceAlone) {
  const std::vector<int64_t> lengths = some_lengths(300, 90);
  const LikeLengthOrder order(lengths, 16, 3), again(lengths, 16, 3), other(lengths, 16, 4);
  std::vector<int64_t> forward, backward, of_other;
  for (int64_t i = 0; i < 900; ++i) forward.push_back(order.example(i));
  for (int64_t i = 899; i >= 0; --i) backward.insert(backward.begin(), again.example(i));
  for (int64_t i = 0; i < 900; ++i) of_other.push_back(other.example(i));
  EXPECT_EQ(forward, backward);
  EXPECT_NE(forward, of_other);
  EXPECT_FALSE(std::equal(forward.begin(), forward.begin() + 300, forward.begin() + 300));
  EXPECT_THROW(order.example(-1), Error);
  EXPECT_THROW(LikeLengthOrder({}, 16, 3), Error);
  EXPECT_THROW(LikeLengthOrder(lengths, 0, 3), Error);
}

// Also those that begin in one epoch at another offset than in the one before.
TEST(LikeLengthOrder, BlocksAreSortedAndLieCloseTogetherInLength) {
  const std::vector<int64_t> lengths = some_lengths(5003, 4000);
  const LikeLengthOrder order(lengths, 10, 3);
  const auto length = [&](int64_t place) {
    return lengths[static_cast<size_t>(order.example(place))];
  };
  int64_t blocks = 0, rising = 0, spread = 0;
  for (int64_t first = 0; first + 10 <= 3 * 5003; first += 10) {
    if (first / 5003 != (first + 9) / 5003) continue;  // of two epochs
    ++blocks;
    for (int64_t i = first; i + 1 < first + 10; ++i) ASSERT_LE(length(i), length(i + 1)) << i;
    spread += length(first + 9) - length(first);
    if (first >= 10) rising += length(first) >= length(first - 10) ? 1 : 0;
  }
  EXPECT_EQ(blocks, 1498);
  EXPECT_LE(spread, blocks * 100);
  // Blocks come in no order of lengths.
  EXPECT_NEAR(static_cast<double>(rising), static_cast<double>(blocks) / 2,
              static_cast<double>(blocks) / 20);
}

TEST(LikeLengthOrder, TheLongestComeFirstWhereOrderDoesNotMatter) {
  const LikeLengthOrder order({3, 9, 4, 9, 20}, 2, 1);
  EXPECT_THAT(order.longest_first(4), testing::ElementsAre(1, 3, 2, 0));
  EXPECT_THROW(order.longest_first(6), Error);
}

TEST(PaddedLength, AFewLengthsCoverAllRows) {
  for (const int64_t limit : {1, 15, 16, 60, 128, 1000, 1025, 4096, 16384}) {
    std::set<int64_t> lengths;
    for (int64_t longest = 0; longest <= limit; ++longest) {
      const int64_t padded = padded_length(longest, limit);
      ASSERT_GE(padded, std::max<int64_t>(longest, 1));
      ASSERT_LE(padded, limit);
      lengths.insert(padded);
    }
    EXPECT_LE(lengths.size(), 64u) << limit;
  }
  EXPECT_EQ(padded_length(1, 4096), 64);
  EXPECT_EQ(padded_length(65, 4096), 128);
  EXPECT_EQ(padded_length(17, 100), 32);
}

TEST(LikeLengths, ABatchIsPaddedToItsLongestRow) {
  const auto split = split_of({3, 40, 16, 17, 100, 4, 5, 31});
  const ClassificationSampler like(split, 128, -1, 7, 2), cls(split, 128, 9, 7, 2),
      full(split, 128, -1, 7);
  EXPECT_EQ(like.batch_of(std::vector<int64_t>{0, 2}).T, 16);
  EXPECT_EQ(cls.batch_of(std::vector<int64_t>{0, 2}).T, 32);
  EXPECT_EQ(like.batch_of(std::vector<int64_t>{4, 2}).T, 112);
  EXPECT_EQ(full.batch_of(std::vector<int64_t>{0, 2}).T, 128);
  EXPECT_THAT(full.scoring_order(4), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(like.scoring_order(4), testing::ElementsAre(1, 3, 2, 0));
  // The rows themselves are the same but for their padding.
  const Batch rows = like.batch(4, 4), same = full.batch_of(rows.example_ids);
  for (int64_t row = 0; row < rows.B; ++row) {
    for (int64_t t = 0; t < same.T; ++t) {
      const auto at = static_cast<size_t>(row * same.T + t),
                 i = static_cast<size_t>(row * rows.T + t);
      if (t >= rows.T) {
        EXPECT_EQ(same.mask[at], 0);
        continue;
      }
      EXPECT_EQ(rows.tokens[i], same.tokens[at]);
      EXPECT_EQ(rows.mask[i], same.mask[at]);
      EXPECT_EQ(rows.positions[i], same.positions[at]);
    }
  }
  EXPECT_EQ(rows.labels, same.labels);
}

TEST(LikeLengths, AnUpdateCutIntoOtherMicroBatchesHasTheSameExamples) {
  const ClassificationSampler like(split_of(some_lengths(101, 100)), 128, -1, 7, 12);
  for (int64_t first = 0; first < 404; first += 12) {
    std::vector<int64_t> parts;
    for (const auto& [begin, rows] : {std::pair{0, 5}, {5, 5}, {10, 2}}) {
      const Batch part = like.batch(first + begin, rows);
      parts.insert(parts.end(), part.example_ids.begin(), part.example_ids.end());
    }
    EXPECT_EQ(parts, like.batch(first, 12).example_ids);
  }
}

TEST(LikeLengths, LittleOfABatchIsPadding) {
  const auto split = split_of(some_lengths(8000, 4000));
  const auto [valid, padded] = tokens_of_epoch(ClassificationSampler(split, 4096, -1, 7, 32), 32);
  const auto [same, full] = tokens_of_epoch(ClassificationSampler(split, 4096, -1, 7), 32);
  EXPECT_EQ(valid, same);
  EXPECT_EQ(full, 8000 * 4096);
  EXPECT_LE(static_cast<double>(padded), 1.05 * static_cast<double>(valid));
}

}  // namespace
}  // namespace linnet
