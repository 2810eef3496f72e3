// The functions of clustered attention on the CUDA device against the CPU's: choices bit for bit,
// values against its double precision.
#include "attention/clustered/cluster_blend.h"
#include "attention/clustered/hamming_clusters.h"
#include "tests/attention/token_setting.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 2, kTokens = 37, kHeads = 2, kWidth = 5, kClusters = 6, kBits = 9;
const Shape kShape{kRows, kTokens, kHeads, kWidth};

Tensor mask_of_tokens() {
  return test::TokenSetting().mask(kTokens, 4);
}
Tensor vectors(const char* name) {
  return test::random_tensor(kShape, name);
}
Tensor masked_vectors(const char* name) {
  return test::poisoned(vectors(name), mask_of_tokens());
}

std::vector<Tensor> choices(Device device, DType dtype) {
  const auto on = [&](const Tensor& x) { return x.to(device); };
  const Tensor mask = on(mask_of_tokens());
  const auto draw = [&](const Shape& shape, const char* name) {
    return on(test::random_tensor(shape, name, DType::f32));
  };
  const ClusterDraws draws{draw({kBits, kWidth + 1}, "planes"), draw({kClusters}, "starts"),
                           draw({kClusters, kBits}, "spares")};
  const Tensor clusters =
      hamming_clusters(on(masked_vectors("q").to(dtype)), mask, draws, kClusters, 4);
  const Tensor means =
      on(test::random_tensor({kRows, kClusters, kHeads, kWidth}, "means").to(dtype));
  const Tensor top = top_keys(means, on(masked_vectors("k").to(dtype)), mask, 5);
  std::vector<Tensor> all{clusters, cluster_places(clusters, kClusters), top,
                          top_keys_hidden(top, kTokens), top_keys_of_queries(top, clusters)};
  for (Tensor& x : all) x = on(x).to(Device{});
  return all;
}

TEST(CudaClusters, ChoicesAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> expected = choices(Device{}, dtype);
    const std::vector<Tensor> got = choices(test::kGpu, dtype);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(test::same_bits(got[i], expected[i])) << i << " in " << name_of(dtype);
    }
  }
}

// Values and gradients of means and of both kinds of reading, on the host.
std::vector<Tensor> values(Device device, DType dtype) {
  const auto on = [&](const Tensor& x) { return x.to(dtype).to(device); };
  const Tensor ids = choices(Device{}, DType::f32)[0].to(device);
  const Tensor places = cluster_places(ids, kClusters);
  const Variable x(on(masked_vectors("x")), true), top(on(vectors("top")), true);
  const Shape sums{kRows, kClusters, kHeads};
  const Variable log_top(on(test::random_tensor(sums, "log_top")), true);
  const Tensor logs = test::random_tensor(sums, "log_bottom");
  logs.data<double>()[3] = -std::numeric_limits<double>::infinity();
  const Variable log_bottom(on(logs), true);
  std::vector<Tensor> all;
  for (const bool detached : {false, true}) {
    const Variable means = cluster_means(x, places, kClusters);
    const Variable y = cluster_blend({top, means, log_top, log_bottom}, places, detached);
    const Variable plain = cluster_blend({{}, means, {}, {}}, places, false);
    backward({y, plain}, {on(vectors("dy")), on(vectors("dplain"))});
    for (const Variable& each : {means, y, plain}) all.push_back(each.value());
  }
  for (const Variable& each : {x, top, log_top, log_bottom}) all.push_back(each.grad());
  for (Tensor& each : all) each = each.to(Device{});
  return all;
}

TEST(CudaClusters, MeansAndReadingsAreThoseOfTheCpu) {
  const std::vector<Tensor> expected = values(Device{}, DType::f64);
  const std::vector<Tensor> got = values(test::kGpu, DType::f32);
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_CLOSE(got[i], expected[i], 2e-6);
  }
}

}  // namespace
}  // namespace linnet
