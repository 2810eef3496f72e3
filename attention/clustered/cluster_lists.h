// Places of clusters, the top keys of each cluster, and the lists of keys that follow from both.
#pragma once

#include "core/tensor.h"

namespace linnet {

// i32 [B,T H]: the place of a token's cluster in [C,H], from clusters i32 [B,T,H]; -1: none.
Tensor cluster_places(const Tensor& clusters, int64_t C);

// i32 [B,H,C,top]: the valid keys of k [B,T,H,K] whose products with the cluster's mean [B,C,H,K]
// are largest, the earlier of equal ones first; -1 where there are no more. Products are computed
// in double, the same on every device; a CUDA device allocates B H C T doubles for them.
Tensor top_keys(const Tensor& means, const Tensor& keys, const Tensor& mask, int64_t top);

// f32 [B,H,C,T], to be added to logits of the T keys: -infinity for the cluster's top ones, else 0.
Tensor top_keys_hidden(const Tensor& top, int64_t T);
// i32 [B,H,T,top]: the top keys of a query's cluster.
Tensor top_keys_of_queries(const Tensor& top, const Tensor& clusters);

}  // namespace linnet
