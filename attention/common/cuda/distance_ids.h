// distance_ids (attention/common/distance_ids.h) on a CUDA device.
#pragma once

#include "attention/common/distance_ids.h"

namespace linnet::cuda {

void distance_ids(int64_t first, const DistanceBuckets& buckets, const Tensor& ids);

}  // namespace linnet::cuda
