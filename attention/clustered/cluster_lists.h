// Members of clusters, the top keys of each cluster, and the lists of keys that follow from both.
#pragma once

#include "core/tensor.h"

namespace linnet {

// The tokens of every cluster, in the order of time.
struct ClusterMembers {
  Tensor clusters;  // i32 [B,T,H]: the cluster of a token; -1: none
  Tensor order;     // i32 [B,H,T]: tokens by cluster
  Tensor begins;    // i32 [B,H,C+1]: where a cluster's tokens begin in the order
};
ClusterMembers cluster_members(const Tensor& clusters, int64_t count);

// i32 [B,H,C,top]: the valid keys of k [B,T,H,K] whose products with the cluster's mean [B,C,H,K]
// are largest, the earlier of equal ones first; -1 where there are no more. Products are computed
// in double, the same on every device; a CUDA device allocates B H C T doubles for them.
Tensor top_keys(const Tensor& means, const Tensor& keys, const Tensor& mask, int64_t top);

// f32 [B,H,C,T], to be added to logits of the T keys: -infinity for the cluster's top ones, else 0.
Tensor top_keys_hidden(const Tensor& top, int64_t T);
// i32 [B,H,T,top]: the top keys of a query's cluster.
Tensor top_keys_of_queries(const Tensor& top, const Tensor& clusters);

}  // namespace linnet
