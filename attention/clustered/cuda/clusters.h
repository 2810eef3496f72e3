// Clusters and their lists of keys on a CUDA device; the files beside this folder call these.
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

void cluster_places(const Tensor& clusters, int64_t C, const Tensor& places);
// A block for every cluster; f64 work for all products.
void top_keys(const Tensor& means, const Tensor& keys, const Tensor& mask, const Tensor& best);
void top_keys_hidden(const Tensor& top, const Tensor& bias);
void top_keys_of_queries(const Tensor& top, const Tensor& clusters, const Tensor& index);

}  // namespace linnet::cuda
