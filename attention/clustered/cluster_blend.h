// Means of clusters, and the outputs that queries read from their cluster, composed of operations
// with gradients. `places` are those of cluster_places.
#pragma once

#include "attention/clustered/cluster_lists.h"
#include "autograd/variable.h"

namespace linnet {

// [B,C,H,K]: the means of x [B,T,H,K] over the tokens of each of C clusters; 0 for one without
// tokens. Tokens without a cluster are not read.
Variable cluster_means(const Variable& x, const Tensor& places, int64_t C);

// y_i = (1 - beta) top_i + beta bottom of the cluster of query i, 0 where it has none; beta =
// sigmoid(log_bottom - log_top), the share of the keys beside the top ones in a softmax over all;
// 0 where log_bottom is -infinity.
struct ClusterBlendInputs {
  Variable top;                  // [B,T,H,V], finite everywhere; undefined: y_i = bottom
  Variable bottom;               // [B,C,H,V]
  Variable log_top, log_bottom;  // [B,C,H]; where there is a top
};
// detached: 1 - beta is a constant in backward.
Variable cluster_blend(const ClusterBlendInputs& inputs, const Tensor& places, bool detached);

}  // namespace linnet
