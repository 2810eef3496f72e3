// Clusters, their lists of keys, and how they are averaged and read, on a CUDA device; the files
// beside this folder call these. Sums in a fixed order.
#pragma once

#include "attention/clustered/hamming_clusters.h"
#include "core/tensor.h"

namespace linnet {

// The arrays of HammingRule.
struct HammingTensors {
  Tensor mask, codes, centroids, votes, result;
};

}  // namespace linnet

namespace linnet::cuda {

// A block for every row and head. Products of floats are exact in double, so that codes equal the
// CPU's.
void hamming_clusters(const Tensor& x, const ClusterDraws& draws, const HammingTensors& all,
                      int64_t iterations);

// rows i32 [B,H,T] of x [B,T,H].
void rows_of_heads(const Tensor& x, const Tensor& rows);
// begins [B,H,C+1] in ascending clusters [B,H,T].
void cluster_begins(const Tensor& sorted, const Tensor& begins);
// A block for every cluster; f64 work for all products.
void top_keys(const Tensor& means, const Tensor& keys, const Tensor& mask, const Tensor& best);
void top_keys_hidden(const Tensor& top, const Tensor& bias);
void top_keys_of_queries(const Tensor& top, const Tensor& clusters, const Tensor& index);

}  // namespace linnet::cuda
