// Philox against the published known answers; keys, elements and derived distributions.
#include "core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace linnet {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, ReproducesThePublishedKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(
      philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      (Words{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, KnownAnswersHoldAtCompileTime) {
  static_assert(philox({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5u);
  static_assert(hash_name("") == 0xcbf29ce484222325u);
  static_assert(hash_name("a") == 0xaf63dc4c8601ec8cu);  // published FNV-1a test vector
}

TEST(RandomKey, EveryPartOfTheKeyChangesTheDraw) {
  const RandomKey key = RandomKey{1, 2, 0}.at("layer");
  std::set<Words> seen{key.words(3)};
  EXPECT_TRUE(seen.insert(key.words(4)).second);
  EXPECT_TRUE(seen.insert(key.words(uint64_t{3} << 32)).second);
  EXPECT_TRUE(seen.insert(RandomKey{2, 2, key.site}.words(3)).second);
  EXPECT_TRUE(seen.insert(RandomKey{1, 3, key.site}.words(3)).second);
  EXPECT_TRUE(seen.insert(key.at("dropout").words(3)).second);
  EXPECT_TRUE(seen.insert(RandomKey{1, 2, 0}.at("dropout").at("layer").words(3)).second)
      << "the order of names matters";
  EXPECT_EQ(key.words(3), (RandomKey{1, 2, RandomKey{}.at("layer").site}.words(3)));
}

TEST(RandomKey, ManyElementsAtOnceAreTheSameWords) {
  const RandomKey key = RandomKey{1, 2, 0}.at("layer");
  for (const int64_t count : {0, 1, 15, 16, 17, 100}) {
    const uint64_t first = (uint64_t{7} << 32) - 20;  // the low half carries over on the way
    std::vector<uint32_t> words(static_cast<size_t>(4 * count + 1), 77);
    key.fill_words(first, count, words.data());
    for (int64_t i = 0; i < count; ++i) {
      const Words expected = key.words(first + static_cast<uint64_t>(i));
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), words.begin() + 4 * i)) << i;
    }
    EXPECT_EQ(words.back(), 77u) << "wrote past the end";
  }
}

TEST(RandomKey, ElementsOfDifferentExamplesAndPositionsDiffer) {
  std::set<uint64_t> seen;
  for (uint64_t example : {0, 1, 2, 1000000}) {
    for (uint64_t position : {0, 1, 7, 1048576}) {
      for (uint64_t channel : {0, 1, 255}) {
        EXPECT_TRUE(seen.insert(random_element(example, position, channel, 256)).second);
      }
    }
  }
}

TEST(RandomKey, UniformAndNormalHaveTheirMoments) {
  const RandomKey key{7, 0, 0};
  constexpr int kCount = 200000;
  double mean = 0, normal_mean = 0, normal_square = 0, normal_fourth = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double u = key.uniform(i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    mean += u / kCount;
    const double x = key.normal(i);
    normal_mean += x / kCount;
    normal_square += x * x / kCount;
    normal_fourth += x * x * x * x / kCount;
  }
  // Five standard deviations of each estimate.
  EXPECT_NEAR(mean, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(normal_mean, 0, 5 * std::sqrt(1.0 / kCount));
  EXPECT_NEAR(normal_square, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(normal_fourth, 3, 5 * std::sqrt(96.0 / kCount));
}

TEST(RandomKey, BelowIsUniformAndNeverReachesItsBound) {
  const RandomKey key{3, 1, 4};
  int counts[7] = {};
  for (uint64_t i = 0; i < 70000; ++i) {
    const uint64_t value = key.below(i, 7);
    ASSERT_LT(value, 7u);
    ++counts[value];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 5 * std::sqrt(10000.0));
  EXPECT_EQ(key.below(0, 1), 0u);
  EXPECT_LT(key.below(5, ~uint64_t{0}), ~uint64_t{0});
}

}  // namespace
}  // namespace linnet
