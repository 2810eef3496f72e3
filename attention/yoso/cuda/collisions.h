// Sampled collisions on a CUDA device. Sums in a fixed order.
#pragma once

#include "attention/yoso/bucket_lists.h"
#include "core/tensor.h"

namespace linnet::cuda {

// linnet::hash_codes, in double: products of floats are exact, so that signs equal the CPU's.
void hash_codes(const Tensor& x, const Tensor& planes, const Tensor& mask, int64_t bits,
                const Tensor& codes);
// keys i64 [B,H,hashes,T] of codes [B,T,H,hashes], unsorted.
void bucket_keys(const Tensor& codes, const Tensor& segments, const Tensor& keys);

// out [B,T,H,W] f32, zero before: factor times the sum of x_j [B,S,H,W] over the buckets of a
// query. A thread for every column.
void read_buckets(const BucketLists& lists, const Tensor& x, float factor, const Tensor& out);
// out [B,T,H,K] f32, zero before: factor sum_j (g_i . v_j) x_j, with g [B,T,H,V], v [B,S,H,V] and x
// [B,S,H,K]. A warp for every column.
void read_weighed_buckets(const BucketLists& lists, const Tensor& g, const Tensor& v,
                          const Tensor& x, float factor, const Tensor& out);

}  // namespace linnet::cuda
