#include "attention/reformer/cuda/chunks.h"

#include <limits>

#include "attention/reformer/bucket_rule.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

// Products of one vector with the directions of a round.
struct Products {
  StoredValues vector;
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
  const StoredValues vectors = stored_values(x);
  const float* directions = pointer<float>(rotations);
  int32_t* to = pointer<int32_t>(buckets);
  for_each("hash_buckets", buckets.elements(), [=] __device__(int64_t i) {
    const int64_t vector = i / rounds, first = (vector % H * rounds + i % rounds) * stride;
    to[i] = hash.bucket(i, Products{vectors.from(vector * K), directions + first * K, K});
  });
}

}  // namespace

void hash_buckets(const Tensor& x, const Tensor& rotations, const BucketContext& context,
                  const Tensor& buckets) {
  write_buckets(x, rotations.to(DType::f32), context, buckets);
}

void sorting_keys(const Tensor& buckets, const Tensor& spans, const Tensor& keys) {
  const int64_t rounds = keys.size(0), B = keys.size(1), H = keys.size(2), T = keys.size(3);
  const int32_t* from = pointer<int32_t>(buckets);
  const int32_t* begins = pointer_or_null<int32_t>(spans);
  int64_t* to = pointer<int64_t>(keys);
  for_each("sorting_keys", keys.elements(), [=] __device__(int64_t i) {
    const int64_t list = i / T, token = list / H % B * T + i % T;
    const int64_t bucket = (token * H + list % H) * rounds + list / H / B;
    to[i] = bucket_order(begins == nullptr ? 0 : begins[token], from[bucket]);
  });
}

void fill_chunks(const ChunkTensors& all) {
  const ChunkRule rule = all.rule();
  const Chunks& chunks = all.chunks;
  if (rule.starts != nullptr) {
    for_each("start_documents", rule.B, [=] __device__(int64_t b) { rule.start_documents(b); });
  }
  for_each("place_tokens", chunks.places.elements(), [=] __device__(int64_t i) { rule.place(i); });
  for_each("list_chunks", chunks.index.elements(), [=] __device__(int64_t i) { rule.list(i); });
  float* bias = pointer<float>(chunks.bias);
  for_each("look_at_chunks", chunks.bias.elements(), [=] __device__(int64_t i) {
    const int64_t query = i / rule.length, t = i % rule.length;
    const int32_t key = rule.index[query / rule.chunk * rule.length + t];
    const bool seen = rule.sight(query).sees(key) && !(rule.dedup && rule.met_before(query, t));
    bias[i] = seen ? 0.0f : -std::numeric_limits<float>::infinity();
  });
}

}  // namespace linnet::cuda
