// Reformer's buckets and chunks on the CUDA device: those of the CPU, bit for bit.
#include "attention/reformer/chunks.h"

#include "attention/reformer/buckets.h"
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
          EXPECT_TRUE(test::same_bits(got.bias.to(Device{}), expected.bias));
        }
      }
    }
  }
}

}  // namespace
}  // namespace linnet
