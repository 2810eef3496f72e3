// Reformer's buckets, chunks and rounds on the CUDA device: those of the CPU.
#include "attention/reformer/chunks.h"

#include <limits>

#include "attention/reformer/buckets.h"
#include "attention/reformer/rounds.h"
#include "tests/attention/token_setting.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 2, kTokens = 37, kHeads = 2, kWidth = 5, kRounds = 2;

struct Setting {
  DType dtype = DType::f32;
  bool documents = false, dedup = false;
  int64_t chunk = 3;
  Device device = {};

  test::TokenSetting tokens() const { return {kRows, kTokens, 0, documents, true, 0}; }
  BlockAttentionContext context() const { return test::on_device(tokens().context(), device); }
  Tensor x() const {
    const Tensor x = test::random_tensor({kRows, kTokens, kHeads, kWidth}, "x");
    return test::poisoned(x, tokens().context().key_mask).to(dtype).to(device);
  }
  Tensor buckets() const {
    const BucketRule rule(3, 20, 32);
    const Tensor rotations =
        test::random_tensor({kHeads, kRounds * rule.directions(), kWidth}, "r", DType::f32);
    const BlockAttentionContext at = context();
    return hash_buckets(x(), rotations.to(device),
                        {rule, kRounds, at.key_mask, document_spans(at.segments)});
  }
  Chunks chunks() const {
    const BlockAttentionContext at = context();
    return make_chunks(buckets(), {chunk, dedup, dedup, at.key_mask, document_spans(at.segments)},
                       DType::f32);
  }
};

TEST(CudaReformer, BucketsAndChunksAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool documents : {false, true}) {
      for (const bool dedup : {false, true}) {
        for (const int64_t chunk : {int64_t{3}, kTokens}) {
          const Setting host{dtype, documents, dedup, chunk, {}};
          const Setting device{dtype, documents, dedup, chunk, test::kGpu};
          EXPECT_TRUE(test::same_bits(device.buckets().to(Device{}), host.buckets()));
          const Chunks expected = host.chunks(), got = device.chunks();
          EXPECT_EQ(got.size, expected.size);
          EXPECT_TRUE(test::same_bits(got.order.to(Device{}), expected.order));
          EXPECT_TRUE(test::same_bits(got.places.to(Device{}), expected.places));
          EXPECT_TRUE(test::same_bits(got.index.to(Device{}), expected.index));
          const Tensor& seen = dedup ? expected.bias : expected.sight;
          EXPECT_TRUE(test::same_bits((dedup ? got.bias : got.sight).to(Device{}), seen));
        }
      }
    }
  }
}

// Tokens in places, joined rounds, and all gradients.
std::vector<Tensor> moved(const Setting& setting) {
  const Chunks chunks = setting.chunks();
  const auto leaf = [&](const Shape& shape, const char* name, DType dtype) {
    return Variable(test::random_tensor(shape, name).to(dtype).to(setting.device), true);
  };
  const int64_t N = chunks.order.size(2);
  const Variable x(setting.x(), true), y = leaf({kRows, N, kHeads, kWidth}, "y", setting.dtype);
  const Variable v = leaf({kRows, kTokens, kHeads, kWidth}, "v", setting.dtype);
  // Some tokens have no key in a round, others in none.
  const Tensor found = test::random_tensor({kRows, N, kHeads}, "sums");
  for (int64_t i = 0; i < found.elements(); ++i) {
    double& sum = found.data<double>()[i];
    if (sum < 0) sum = -std::numeric_limits<double>::infinity();
  }
  const Variable sums(found.to(DType::f32).to(setting.device), true);
  const std::vector<Variable> all{take_places(x, chunks), join_rounds({y, sums}, v, chunks)};
  std::vector<Tensor> seeds;
  for (const Variable& result : all) {
    const Tensor seed = test::random_tensor(result.shape(), "seed");
    seeds.push_back(seed.to(result.dtype()).to(setting.device));
  }
  backward(all, seeds);
  return {all[0].value(), all[1].value(), x.grad(), y.grad(), sums.grad(), v.grad()};
}

TEST(CudaReformer, PlacesAndRoundsAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool documents : {false, true}) {
      const std::vector<Tensor> expected = moved({dtype, documents, false, 3, {}});
      const std::vector<Tensor> got = moved({dtype, documents, false, 3, test::kGpu});
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_CLOSE(got[i], expected[i], test::tolerance_of(dtype));
      }
    }
  }
}

}  // namespace
}  // namespace linnet
