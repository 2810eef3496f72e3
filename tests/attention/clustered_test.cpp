// Clustered attention in cases that can be followed by hand, its presets, and the released code's
// backward.
#include "attention/clustered/clustered.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include <limits>

#include "attention/clustered/cluster_blend.h"
#include "attention/clustered/hamming_clusters.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using Indices = std::vector<int32_t>;

Tensor tensor(const std::vector<double>& values, const Shape& shape) {
  return Tensor::from(values, shape);
}

TEST(Clustered, QueriesOfOneSideStayTogether) {
  // Codes 11, 00, 11, 10, 00; the planes are the axes, the second 1 away from the origin.
  const Tensor x = tensor({1, 2, -1, 0, 2, 4, 1, 0.5, -2, -1}, {1, 5, 1, 2});
  ClusterDraws draws;
  draws.planes = tensor({1, 0, 0, 0, 1, 1}, {2, 3});
  draws.starts = tensor({0, 0}, {2});
  draws.spares = tensor({1, 1, -1, 1}, {2, 2});  // 11 and 10, lowest bit first
  const auto clusters = [&](int64_t iterations, const Tensor& mask = {}) {
    return hamming_clusters(x, mask, draws, 2, iterations).to_vector<int32_t>();
  };
  // Runs 0 1 | 2 3 4 begin with tokens 0 and 2, both 11: all go to the first.
  EXPECT_EQ(clusters(1), Indices({0, 0, 0, 0, 0}));
  // It moves to bits 1 of three in five, 0 of two: 10 has the first bit only. The empty one takes
  // its spare code, second bit only.
  EXPECT_EQ(clusters(2), Indices({0, 0, 0, 0, 0}));
  // The last token of the second run: 00.
  draws.starts = tensor({0, 0.99}, {2});
  EXPECT_EQ(clusters(1), Indices({0, 1, 0, 0, 1}));
  const Tensor mask = Tensor::from(std::vector<uint8_t>{0, 1, 1, 1, 0}, {1, 5});
  EXPECT_EQ(clusters(1, mask), Indices({-1, 0, 1, 1, -1}));  // tokens 1, and 3 of 2 3
  // A cluster for each token, and no token for the other clusters.
  const Tensor one = Tensor::from(std::vector<uint8_t>{0, 0, 0, 1, 0}, {1, 5});
  EXPECT_EQ(clusters(3, one), Indices({-1, -1, -1, 0, -1}));
}

TEST(Clustered, TheBestKeysAreTheLargestProductsEarlierOnesFirst) {
  const Tensor keys = tensor({1, 3, 2, 3, -1}, {1, 5, 1, 1});
  const Tensor means = tensor({2, -1}, {1, 2, 1, 1});
  EXPECT_EQ(top_keys(means, keys, {}, 3).to_vector<int32_t>(), Indices({1, 3, 2, 4, 0, 2}));
  // No more than there are valid keys.
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 0, 1, 0}, {1, 5});
  const Tensor top = top_keys(means, keys, mask, 3);
  EXPECT_EQ(top.to_vector<int32_t>(), Indices({3, 0, -1, 0, 3, -1}));
  const float hidden = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(top_keys_hidden(top, 5).to_vector<float>(),
            std::vector<float>({hidden, 0, 0, hidden, 0, hidden, 0, 0, hidden, 0}));
  const Tensor clusters = test::ids({1, -1, 0}, {1, 3, 1});
  EXPECT_EQ(top_keys_of_queries(top, clusters).to_vector<int32_t>(),
            Indices({0, 3, -1, -1, -1, -1, 3, 0, -1}));
}

TEST(Clustered, MeansAreOverMembers) {
  const Tensor clusters = test::ids({2, -1, 0, 2}, {1, 4, 1});
  const Variable x(tensor({1, std::nan(""), 5, 3}, {1, 4, 1, 1}), true);
  const Variable means = cluster_means(x, cluster_places(clusters, 3), 3);
  EXPECT_EQ(means.value().to_vector<double>(), std::vector<double>({5, 0, 2}));
  backward({means}, {tensor({7, 8, 6}, {1, 3, 1, 1})});
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>({3, 0, 7, 3}));
}

TEST(Clustered, TheReleasedBackwardHoldsTheShareOfTheBestKeys) {
  // One cluster of two queries; a quarter of the weight is beside the best keys.
  const Tensor places = cluster_places(test::ids({0, 0}, {1, 2, 1}), 1);
  const auto leaf = [](const std::vector<double>& values, const Shape& shape) {
    return Variable(tensor(values, shape), true);
  };
  const auto slope = [&](bool detached) {
    const ClusterBlendInputs in{leaf({4, 8}, {1, 2, 1, 1}), leaf({2}, {1, 1, 1, 1}),
                                leaf({std::log(3.0)}, {1, 1, 1}), leaf({0}, {1, 1, 1})};
    const Variable y = cluster_blend(in, places, detached);
    EXPECT_TRUE(test::close(y.value(), tensor({3.5, 6.5}, {1, 2, 1, 1}), 1e-14));
    backward({y}, {tensor({1, 10}, {1, 2, 1, 1})});
    EXPECT_TRUE(test::close(in.top.grad(), tensor({0.75, 7.5}, {1, 2, 1, 1}), 1e-14));
    EXPECT_TRUE(test::close(in.bottom.grad(), tensor({2.75}, {1, 1, 1, 1}), 1e-14));
    EXPECT_NEAR(in.log_top.grad().item(), -in.log_bottom.grad().item(), 1e-14);
    return in.log_bottom.grad().item();
  };
  EXPECT_NEAR(slope(false), 0.1875 * (1 * (2 - 4) + 10 * (2 - 8)), 1e-13);
  EXPECT_NEAR(slope(true), 0.1875 * (1 * 2 + 10 * 2), 1e-13);
}

// A cluster whose top has no keys, and one without any: no NaN, and no gradient of the logarithms.
TEST(Clustered, LogarithmsOfNoKeysStayOutOfValuesAndGradients) {
  const double none = -std::numeric_limits<double>::infinity();
  const Tensor places = cluster_places(test::ids({0, 1, -1}, {1, 3, 1}), 2);
  const ClusterBlendInputs in{Variable(tensor({4, 8, 0}, {1, 3, 1, 1}), true),
                              Variable(tensor({2, 3}, {1, 2, 1, 1}), true),
                              Variable(tensor({none, none}, {1, 2, 1}), true),
                              Variable(tensor({0, none}, {1, 2, 1}), true)};
  const Variable y = cluster_blend(in, places, false);
  EXPECT_EQ(y.value().to_vector<double>(), std::vector<double>({2, 8, 0}));
  backward({y}, {tensor({1, 10, 100}, {1, 3, 1, 1})});
  EXPECT_EQ(in.top.grad().to_vector<double>(), std::vector<double>({0, 10, 0}));
  EXPECT_EQ(in.bottom.grad().to_vector<double>(), std::vector<double>({1, 0}));
  EXPECT_EQ(in.log_top.grad().to_vector<double>(), std::vector<double>({0, 0}));
  EXPECT_EQ(in.log_bottom.grad().to_vector<double>(), std::vector<double>({0, 0}));
}

TEST(Clustered, ReadsTwiceAsManyKeysAQueryAsItsHeadsAreWide) {
  const auto keys = [](const std::string& preset) {
    const ConfigNode resolved =
        find_mechanism("clustered").resolve(parse_yaml(concat("{preset: ", preset, "}"), "test"));
    return std::stoi(resolved.find("clusters")->raw()) +
           std::stoi(resolved.find("top_keys")->raw());
  };
  // 2 K = 128 and 64; the survey's code has 116 and 66.
  EXPECT_EQ(keys("survey"), 116);
  EXPECT_EQ(keys("survey_image"), 66);
}

}  // namespace
}  // namespace linnet
