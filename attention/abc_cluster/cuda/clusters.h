// Clusters of keys on a CUDA device; clusters.cpp calls these.
#pragma once

#include "core/tensor.h"

namespace linnet {

// The arrays of HashClustering.
struct HashClusterTensors {
  Tensor spans, sequence, mask, codes, centroids, votes, clusters;
};

}  // namespace linnet

namespace linnet::cuda {

void hash_clusters(const Tensor& keys, const Tensor& planes, const HashClusterTensors& all,
                   int64_t iterations);
void nearest_clusters(const Tensor& keys, const Tensor& mask, const Tensor& segments,
                      const Tensor& sums, const Tensor& counts, int64_t slots,
                      const Tensor& clusters);

}  // namespace linnet::cuda
