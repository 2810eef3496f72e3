// Clusters of vectors by their hashes: k-means over codes of bits.
#pragma once

#include "core/tensor.h"

namespace linnet {

inline constexpr int64_t kMaxClusterBits = 63;

// Draws of a search; with fewer clusters only the first rows are used.
struct ClusterDraws {
  Tensor planes;  // [bits, K + 1]: bit b of x is x . planes[b, :K] > planes[b, K]
  Tensor starts;  // [clusters]: where in its share of the valid tokens a cluster begins, in [0, 1)
  Tensor spares;  // [clusters, bits]: an empty cluster takes the signs of its row
};

// Clusters i32 [B,T,H] (-1: masked) of x [B,T,H,K], for every row and head by itself, at most
// `clusters` of them. The valid tokens are split into as many runs; one token of each run is an
// initial centroid. `iterations` times every token goes to the centroid with the fewest different
// bits (the first of equal ones); after each but the last, centroids become the majority of their
// tokens' bits (0 where they balance). Codes are computed in double: the same on every device.
Tensor hamming_clusters(const Tensor& x, const Tensor& mask, const ClusterDraws& draws,
                        int64_t clusters, int64_t iterations);

}  // namespace linnet
