// Reformer's buckets and lists of keys on a CUDA device; buckets.cpp and chunk_lists.cpp call
// these.
#pragma once

#include "attention/reformer/buckets.h"
#include "attention/reformer/chunk_lists.h"
#include "attention/reformer/list_rule.h"
#include "core/tensor.h"

namespace linnet {

// The arrays of ListRule.
struct ListTensors {
  ChunkContext context;
  Tensor order, index;

  int64_t queries() const { return index.size(0) * index.size(1) * index.size(2); }
  // at(tensor): where its elements are.
  template <typename At>
  ListRule rule(const At& at) const {
    const auto numbers = [&](const Tensor& x) -> void* { return x.defined() ? at(x) : nullptr; };
    const int64_t T = index.size(2), rounds = order.defined() ? order.size(2) : 1;
    return {T,
            index.size(1),
            rounds,
            context.chunk,
            index.size(3) / rounds,
            context.causal,
            static_cast<const int32_t*>(numbers(order)),
            static_cast<const uint8_t*>(numbers(context.mask)),
            static_cast<const int32_t*>(numbers(context.spans)),
            index.size(0) * T,
            static_cast<int32_t*>(numbers(index))};
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

// The three steps of ListRule for all items.
void write_places(const ListTensors& lists);
void keep_first(const ListTensors& lists, const Tensor& sorted);
void complete_lists(const ListTensors& lists);

}  // namespace linnet::cuda
