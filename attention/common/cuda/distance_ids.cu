#include "attention/common/cuda/distance_ids.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void distance_ids(int64_t first, const DistanceBuckets& buckets, const Tensor& ids) {
  auto* to = pointer<int32_t>(ids);
  const int64_t count = ids.size(1);
  for_each("distance_ids", ids.elements(),
           [=] __device__(int64_t i) { to[i] = buckets.of_head(i / count, first + i % count); });
}

}  // namespace linnet::cuda
