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

  // With pointers into them, wherever they are.
  ChunkRule rule() const {
    const auto pointer_of = [](const Tensor& x) {
      return x.defined() ? static_cast<int32_t*>(x.raw()) : nullptr;
    };
    const Tensor& mask = context.mask;
    return {.B = chunks.places.size(1),
            .H = chunks.places.size(2),
            .T = chunks.places.size(3),
            .rounds = chunks.places.size(0),
            .chunk = chunks.size,
            .places = chunks.order.size(3),
            .length = chunks.index.size(4),
            .causal = context.causal,
            .dedup = context.dedup,
            .valid = mask.defined() ? static_cast<const uint8_t*>(mask.raw()) : nullptr,
            .spans = pointer_of(context.spans),
            .sorted = pointer_of(sorted),
            .starts = pointer_of(starts),
            .order = pointer_of(chunks.order),
            .placed = pointer_of(chunks.places),
            .index = pointer_of(chunks.index)};
  }
};

}  // namespace linnet

namespace linnet::cuda {

// linnet::hash_buckets: products of floats are exact in double, so that buckets are those of the
// CPU.
void hash_buckets(const Tensor& x, const Tensor& rotations, const BucketContext& context,
                  const Tensor& buckets);
// bucket_order i64 [rounds,B,H,T] of buckets [B,T,H,rounds].
void sorting_keys(const Tensor& buckets, const Tensor& spans, const Tensor& keys);

// The steps of ChunkRule for all items; the order must be -1.
void fill_chunks(const ChunkTensors& all);

}  // namespace linnet::cuda
