// Queues of tokens and choices of slots on the device: what the CPU makes.
#include "attention/abc_cluster/clusters.h"
#include "attention/common/abc/slot_choices.h"
#include "attention/common/abc/token_queues.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;

Tensor numbers(const Shape& shape, const char* name, int64_t below, DType dtype) {
  const RandomKey key = RandomKey{4, 0, 0}.at(name);
  const Tensor result = Tensor::empty(shape, DType::i64);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<int64_t>()[i] =
        static_cast<int64_t>(key.below(static_cast<uint64_t>(i), static_cast<uint64_t>(below)));
  }
  return result.to(dtype);
}

// Runs of a few tokens.
Tensor segments(int64_t B, int64_t T) {
  const Tensor changes = numbers({B, T}, "changes", 4, DType::i32);
  const Tensor ids = Tensor::empty({B, T}, DType::i32);
  int32_t id = 0;
  for (int64_t i = 0; i < B * T; ++i) {
    ids.data<int32_t>()[i] = id += changes.data<int32_t>()[i] == 0 ? 1 : 0;
  }
  return ids;
}

TEST(CudaTokenQueues, AreThoseOfTheCpu) {
  constexpr int64_t B = 3, T = 11, P = 4;
  for (const int64_t queues : {1, 2}) {
    for (const bool packed : {false, true}) {
      TokenQueueInputs host;
      host.B = B;
      host.T = T;
      host.queues = queues;
      host.keep = 6;
      host.mask = numbers({B, T}, "mask", 2, DType::u8);
      if (packed) host.segments = segments(B, T);
      host.phase = numbers({B}, "phase", queues, DType::i64);
      host.past_mask = numbers({B * queues, P}, "past", 2, DType::u8);
      host.pushed = numbers({B, queues}, "pushed", 90, DType::i64);
      if (packed) host.examples = numbers({B}, "examples", 90, DType::i64);
      TokenQueueInputs device = host;
      device.mask = host.mask.to(kGpu);
      if (packed) device.segments = host.segments.to(kGpu);
      device.phase = host.phase.to(kGpu);
      device.past_mask = host.past_mask.to(kGpu);
      device.pushed = host.pushed.to(kGpu);
      if (packed) device.examples = host.examples.to(kGpu);
      device.device = kGpu;
      const TokenQueues expected = token_queues(host), got = token_queues(device);
      for (const auto member :
           {&TokenQueues::order, &TokenQueues::place, &TokenQueues::mask, &TokenQueues::segments,
            &TokenQueues::past_mask, &TokenQueues::carry_order, &TokenQueues::carry_mask,
            &TokenQueues::phase, &TokenQueues::pushed, &TokenQueues::examples}) {
        EXPECT_TRUE(test::same_bits((got.*member).to(Device{}), expected.*member));
      }
      EXPECT_TRUE(test::same_bits(pushed_after(device.pushed, 5).to(Device{}),
                                  pushed_after(host.pushed, 5)));
    }
  }
}

TEST(CudaTakeTokens, MovesTokensAndTheirGradients) {
  const Tensor order = test::ids({5, -1, 0, 3, -1, 1}, {3, 2});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor values = test::random_tensor({2, 3, 2, 5}, "x", dtype);
    const Tensor seed = test::random_tensor({3, 2, 2, 5}, "seed", dtype);
    const Variable host(values, true), device(values.to(kGpu), true);
    const Variable expected = take_tokens(host, order), got = take_tokens(device, order.to(kGpu));
    backward({expected}, {seed});
    backward({got}, {seed.to(kGpu)});
    EXPECT_TRUE(test::same_bits(got.value().to(Device{}), expected.value()));
    EXPECT_TRUE(test::same_bits(device.grad().to(Device{}), host.grad()));
  }
}

TEST(CudaSlotChoices, AreThoseOfTheCpu) {
  constexpr int64_t B = 3, S = 17, H = 2, N = 5;
  const Tensor positions = numbers({B, S}, "positions", 40, DType::i32);
  const auto same = [](const Tensor& got, const Tensor& expected) {
    EXPECT_TRUE(test::same_bits(got.to(Device{}), expected));
  };
  same(global_token_slots(positions.to(kGpu), 3, N), global_token_slots(positions, 3, N));
  const Tensor mask = numbers({B, S}, "mask", 2, DType::u8), ids = segments(B, S);
  const PooledSlots expected = pooled_slots(mask, ids, B, S, N, {});
  const PooledSlots got = pooled_slots(mask.to(kGpu), ids.to(kGpu), B, S, N, kGpu);
  same(got.slots, expected.slots);
  same(got.weights, expected.weights.to(DType::f32));
  same(one_hot_controls(got.slots, got.weights, H, N),
       one_hot_controls(expected.slots, expected.weights, H, N).to(DType::f32));
  const Tensor examples = Tensor::from(std::vector<int64_t>{7, 1, 900}, {B});
  const RandomKey key = RandomKey{5, 2, 0}.at("layer");
  const Tensor drawn = random_slots(key, examples, positions, H, N);
  same(random_slots(key, examples.to(kGpu), positions.to(kGpu), H, N), drawn);
  same(one_hot_controls(drawn.to(kGpu), {}, H, N), one_hot_controls(drawn, {}, H, N));
  same(one_hot_controls(drawn.to(kGpu), {}, H, N, DType::bf16),
       one_hot_controls(drawn, {}, H, N).to(DType::bf16));
}

TEST(CudaAbcCluster, ClustersAreThoseOfTheCpu) {
  constexpr int64_t B = 2, S = 23, H = 2, K = 5, N = 4;
  const Tensor mask = numbers({B, S}, "mask", 2, DType::u8), ids = segments(B, S);
  const Tensor planes = test::random_tensor({9, K}, "planes", DType::f32);
  const Tensor sums = test::random_tensor({B, H, N, K}, "sums", DType::f32);
  const Tensor counts = Tensor::full({B, H, N}, 2, DType::f64);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor keys = test::random_tensor({B, S, H, K}, "keys", dtype), there = keys.to(kGpu);
    for (const bool packed : {false, true}) {
      const Tensor documents = packed ? ids : Tensor();
      const Tensor documents_there = packed ? ids.to(kGpu) : Tensor();
      EXPECT_TRUE(test::same_bits(
          hash_clusters(there, planes.to(kGpu), mask.to(kGpu), documents_there, N, 3).to(Device{}),
          hash_clusters(keys, planes, mask, documents, N, 3)));
      EXPECT_TRUE(test::same_bits(
          nearest_clusters(there, mask.to(kGpu), documents_there, {}, {}, N).to(Device{}),
          nearest_clusters(keys, mask, documents, {}, {}, N)));
      EXPECT_TRUE(test::same_bits(
          nearest_clusters(there, mask.to(kGpu), documents_there, sums.to(kGpu), counts.to(kGpu), N)
              .to(Device{}),
          nearest_clusters(keys, mask, documents, sums, counts, N)));
    }
  }
}

}  // namespace
}  // namespace linnet
