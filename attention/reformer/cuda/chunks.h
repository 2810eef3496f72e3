// Reformer's buckets and chunks on a CUDA device; buckets.cpp and chunks.cpp call these.
#pragma once

#include "attention/reformer/buckets.h"
#include "attention/reformer/chunk_rule.h"
#include "attention/reformer/chunks.h"
#include "core/tensor.h"

namespace linnet {

// The arrays of ChunkRule.
struct ChunkTensors {
  ChunkContext context;
  Tensor sorted, starts;
  Chunks chunks;

  // at(tensor): where its elements are.
  template <typename At>
  ChunkRule rule(const At& at) const {
    const auto numbers = [&](const Tensor& x) {
      return x.defined() ? static_cast<int32_t*>(at(x)) : nullptr;
    };
    const Tensor& mask = context.mask;
    const int64_t rounds = chunks.places.size(2), T = chunks.places.size(3);
    return {T,
            chunks.places.size(1),
            rounds,
            chunks.size,
            chunks.order.size(2) / rounds,
            chunks.index.size(3),
            context.causal,
            mask.defined() ? static_cast<const uint8_t*>(at(mask)) : nullptr,
            numbers(context.spans),
            numbers(sorted),
            chunks.places.size(0) * T,
            numbers(starts),
            numbers(chunks.order),
            numbers(chunks.places),
            numbers(chunks.index),
            numbers(chunks.sight)};
  }
};

}  // namespace linnet

namespace linnet::cuda {

// linnet::hash_buckets: products of floats are exact in double, so that buckets are those of the
// CPU.
void hash_buckets(const Tensor& x, const Tensor& rotations, const BucketContext& context,
                  const Tensor& buckets);
// bucket_order i64 [B,H,rounds,T] of buckets [B,T,H,rounds].
void sorting_keys(const Tensor& buckets, const Tensor& spans, const Tensor& keys);

// The steps of ChunkRule for all items; the order must be zeros.
void fill_chunks(const ChunkTensors& all);

}  // namespace linnet::cuda
