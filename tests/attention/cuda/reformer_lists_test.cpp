// Reformer's buckets and lists on the CUDA device: those of the CPU, bit for bit.
#include "attention/reformer/chunk_lists.h"

#include "attention/reformer/buckets.h"
#include "tests/attention/token_setting.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 2, kTokens = 37, kHeads = 2, kWidth = 5, kRounds = 2;

struct Lists {
  Tensor buckets, chunks, whole;
};

Lists lists_on(Device device, DType dtype, bool documents, bool causal, bool dedup) {
  const test::TokenSetting setting{kRows, kTokens, 0, documents, true, 0};
  const BlockAttentionContext at = test::on_device(setting.context(), device);
  const BucketRule rule(3, 20, 32);
  const Tensor rotations =
      test::random_tensor({kHeads, kRounds * rule.directions(), kWidth}, "r", DType::f32);
  const Tensor x = test::poisoned(test::random_tensor({kRows, kTokens, kHeads, kWidth}, "x"),
                                  setting.context().key_mask);
  const Tensor spans = document_spans(at.segments);
  const ChunkContext context{3, causal, dedup, at.key_mask, spans};
  Lists lists;
  lists.buckets = hash_buckets(x.to(dtype).to(device), rotations.to(device),
                               {rule, kRounds, at.key_mask, spans});
  lists.chunks = chunk_lists(lists.buckets, context).to(Device{});
  ChunkContext one = context;
  one.chunk = kTokens;
  lists.whole = whole_lists(kRows, kTokens, device, one).to(Device{});
  lists.buckets = lists.buckets.to(Device{});
  return lists;
}

TEST(CudaReformer, BucketsAndListsAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool documents : {false, true}) {
      for (const bool dedup : {false, true}) {
        const Lists expected = lists_on(Device{}, dtype, documents, dedup, dedup);
        const Lists got = lists_on(test::kGpu, dtype, documents, dedup, dedup);
        EXPECT_TRUE(test::same_bits(got.buckets, expected.buckets));
        EXPECT_TRUE(test::same_bits(got.chunks, expected.chunks));
        EXPECT_TRUE(test::same_bits(got.whole, expected.whole));
      }
    }
  }
}

}  // namespace
}  // namespace linnet
