#include "attention/reformer/cuda/lists.h"

#include "attention/reformer/bucket_rule.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_numbers.h"

namespace linnet::cuda {
namespace {

// Of one vector with the directions of a round.
struct Products {
  StoredNumbers vector;
  const float* directions;
  int64_t K;

  __host__ __device__ double operator()(int64_t r) const {
    double product = 0;
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
    for (int64_t c = 0; c < K; ++c) {
      product += static_cast<double>(vector.at(c)) * static_cast<double>(directions[r * K + c]);
    }
#endif
    return product;
  }
};

void write_buckets(const Tensor& x, const Tensor& rotations, const BucketContext& context,
                   const Tensor& buckets) {
  const int64_t H = x.size(2), K = x.size(3), rounds = context.rounds;
  const BucketHash hash{context.rule,
                        x.size(1),
                        H,
                        rounds,
                        pointer_or_null<uint8_t>(context.mask),
                        pointer_or_null<int32_t>(context.spans),
                        x.size(0) * x.size(1)};
  const int64_t stride = rotations.size(1) / rounds;
  const StoredNumbers vectors = stored_numbers(x);
  const float* directions = pointer<float>(rotations);
  int32_t* to = pointer<int32_t>(buckets);
  for_each("hash_buckets", buckets.elements(), [=] __device__(int64_t i) {
    const int64_t vector = i / rounds, first = (vector % H * rounds + i % rounds) * stride;
    to[i] = hash.bucket(i, Products{vectors.from(vector * K), directions + first * K, K});
  });
}

ListRule rule_of(const ListTensors& lists) {
  return lists.rule([](const Tensor& x) { return x.raw(); });
}

}  // namespace

void hash_buckets(const Tensor& x, const Tensor& rotations, const BucketContext& context,
                  const Tensor& buckets) {
  write_buckets(x, rotations.to(DType::f32), context, buckets);
}

void sorting_keys(const Tensor& buckets, const Tensor& spans, const Tensor& keys) {
  const int64_t T = keys.size(3), lists = keys.size(1) * keys.size(2);
  const int32_t* from = pointer<int32_t>(buckets);
  const int32_t* begins = pointer_or_null<int32_t>(spans);
  int64_t* to = pointer<int64_t>(keys);
  for_each("sorting_keys", keys.elements(), [=] __device__(int64_t i) {
    const int64_t token = i / T / lists * T + i % T;
    to[i] =
        bucket_order(begins == nullptr ? 0 : begins[token], from[token * lists + i / T % lists]);
  });
}

void write_places(const ListTensors& lists) {
  const ListRule rule = rule_of(lists);
  for_each("list_places", lists.index.elements(), [=] __device__(int64_t i) { rule.place(i); });
}

void keep_first(const ListTensors& lists, const Tensor& sorted) {
  const ListRule rule = rule_of(lists);
  const int32_t* ascending = pointer<int32_t>(sorted);
  for_each("list_first_places", sorted.elements(),
           [=] __device__(int64_t i) { rule.keep_first(i, ascending); });
}

void complete_lists(const ListTensors& lists) {
  const ListRule rule = rule_of(lists);
  for_each("complete_lists", lists.queries(), [=] __device__(int64_t i) { rule.complete(i); });
}

}  // namespace linnet::cuda
