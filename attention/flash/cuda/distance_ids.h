// distance_ids (attention/flash/distance_ids.h) on a CUDA device.
#pragma once

#include "attention/flash/distance_ids.h"

namespace linnet::cuda {

void distance_ids(int64_t first, const DistanceBuckets& buckets, const Tensor& ids);

}  // namespace linnet::cuda
