// Clusters of keys in cases that can be followed by hand.
#include <gtest/gtest.h>

#include "attention/abc_cluster/clusters.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

TEST(AbcCluster, LaterKeysJoinTheNearestMean) {
  const auto clusters = [](const std::vector<double>& keys, int64_t slots, const Tensor& mask = {},
                           const Tensor& segments = {}, const Tensor& sums = {},
                           const Tensor& counts = {}) {
    const auto n = static_cast<int64_t>(keys.size());
    return nearest_clusters(Tensor::from(keys, {1, n, 1, 1}), mask, segments, sums, counts, slots)
        .to_vector<int32_t>();
  };
  using Indices = std::vector<int32_t>;
  // 0 and 10 begin; 4, 5 and 6 move the first mean to 3.75, so that 8 goes to the second.
  EXPECT_EQ(clusters({0, 10, 4, 5, 6, 8}, 2), Indices({0, 1, 0, 0, 0, 1}));
  // In the middle the first one wins.
  EXPECT_EQ(clusters({0, 10, 5}, 2), Indices({0, 1, 0}));
  // Padding is skipped; a document restarts.
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1}, {1, 4});
  EXPECT_EQ(clusters({0, 7, 10, 9}, 2, mask), Indices({0, -1, 1, 1}));
  EXPECT_EQ(clusters({0, 10, 9, 8}, 2, {}, test::ids({0, 0, 1, 1}, {1, 4})), Indices({0, 1, 0, 1}));
  // The decode state holds means 2 (of two keys) and 10.
  const Tensor sums = Tensor::from(std::vector<double>{4, 10}, {1, 1, 2, 1});
  const Tensor counts = Tensor::from(std::vector<double>{2, 1}, {1, 1, 2});
  EXPECT_EQ(clusters({5, 7, 6}, 2, {}, {}, sums, counts), Indices({0, 1, 1}));
}

TEST(AbcCluster, HashesOfOneSideStayTogether) {
  // Codes 11, 00, 11, 10, 00 of one key per token, seeded by tokens 0 and 2 of the five: both 11.
  const Tensor keys =
      Tensor::from(std::vector<double>{1, 1, -1, -1, 2, 3, 1, -1, -2, -1}, {1, 5, 1, 2});
  const Tensor planes = Tensor::from(std::vector<double>{1, 0, 0, 1}, {2, 2});
  const auto clusters = [&](int64_t iterations, const Tensor& mask, const Tensor& segments) {
    return hash_clusters(keys, planes, mask, segments, 2, iterations).to_vector<int32_t>();
  };
  using Indices = std::vector<int32_t>;
  // Equal centroids: all keys go to the first, which moves to 10; the second then takes the keys at
  // 11.
  EXPECT_EQ(clusters(0, {}, {}), Indices({0, 0, 0, 0, 0}));
  EXPECT_EQ(clusters(1, {}, {}), Indices({1, 0, 1, 0, 0}));
  // Without token 0 the seeds are those of tokens 1 and 3, 00 and 10.
  const Tensor mask = Tensor::from(std::vector<uint8_t>{0, 1, 1, 1, 1}, {1, 5});
  EXPECT_EQ(clusters(0, mask, {}), Indices({-1, 0, 1, 1, 0}));
  // Documents for themselves: 11, 00 | 11, 10, 00 seeded by 11 and 10.
  EXPECT_EQ(clusters(0, {}, test::ids({0, 0, 1, 1, 1}, {1, 5})), Indices({0, 1, 0, 1, 1}));
}

TEST(AbcCluster, MoreBitsThanFitAreRefused) {
  const Tensor keys = test::random_tensor({1, 2, 1, 2}, "keys");
  EXPECT_THROW(hash_clusters(keys, test::random_tensor({64, 2}, "planes"), {}, {}, 2, 1), Error);
}

}  // namespace
}  // namespace linnet
