// Which cluster every key belongs to: k-means over sign hashes where all keys are known, the
// nearest running mean where they come one by one. Computed in double from the stored keys, the
// same on every device.
#pragma once

#include "core/tensor.h"

namespace linnet {

// Clusters i32 [B,S,H] (-1: padded) of keys [B,S,H,K], separate for every segment and head. A key's
// code holds the signs of its products with `planes` [bits,K], at most 63. Codes of valid tokens at
// equal distances begin as centroids; `iterations` times every key goes to the centroid with the
// fewest different bits (the first of equal ones), and every centroid becomes the majority of its
// keys' bits (0 where they balance; an empty one stays). With segments the call synchronizes with
// the host.
Tensor hash_clusters(const Tensor& keys, const Tensor& planes, const Tensor& mask,
                     const Tensor& segments, int64_t slots, int64_t iterations);

// Causal: a key goes to the first empty slot, or, where there is none, to the slot whose mean over
// earlier keys is nearest (the first of equal ones). sums [B,H,slots,K] and counts [B,H,slots] f64:
// state with which the row's first segment begins; undefined: none.
Tensor nearest_clusters(const Tensor& keys, const Tensor& mask, const Tensor& segments,
                        const Tensor& sums, const Tensor& counts, int64_t slots);

}  // namespace linnet
