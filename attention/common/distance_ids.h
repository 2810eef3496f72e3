// The T5 buckets of distances (Raffel et al. 2020), as ids of the rows of a table.
#pragma once

#include "core/tensor.h"

namespace linnet {

constexpr int64_t kDistanceBuckets = 32;

// The bucket of a key at that distance (key - query): exact near by, logarithmic up to 128. Causal:
// distances above 0 are in the bucket of 0. Otherwise either side has half of the buckets.
int64_t distance_bucket(int64_t distance, bool causal);

// distance_bucket of first, first + 1, ..., plus kDistanceBuckets for every head before: i32
// [heads,count], on `device`.
Tensor distance_ids(int64_t first, int64_t count, bool causal, Device device, int64_t heads = 1);

// The buckets in a form that kernels share.
struct DistanceBuckets {
  static constexpr int64_t kMaxDistance = 128;
  uint8_t near[kMaxDistance] = {};  // by distance, without its side
  int32_t last = 0, other_side = 0;
  bool causal = false;

  constexpr int32_t of(int64_t distance) const {
    const int64_t far = distance < 0 ? -distance : causal ? 0 : distance;
    const int32_t side = !causal && distance > 0 ? other_side : 0;
    return side + (far < kMaxDistance ? int32_t{near[far]} : last);
  }
  constexpr int32_t of_head(int64_t head, int64_t distance) const {
    return static_cast<int32_t>(head * kDistanceBuckets) + of(distance);
  }
};

}  // namespace linnet
