#include "attention/common/distance_ids.h"

#include <algorithm>
#include <cmath>

#include "attention/common/cuda/distance_ids.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

// The bucket among `count` of one side: the first half has one bucket per distance.
int64_t bucket_of(int64_t far, int64_t count) {
  const int64_t exact = count / 2;
  if (far < exact) return far;
  const double ratio =
      std::log(static_cast<double>(far) / static_cast<double>(exact)) /
      std::log(static_cast<double>(DistanceBuckets::kMaxDistance) / static_cast<double>(exact));
  const auto steps = static_cast<int64_t>(ratio * static_cast<double>(count - exact));
  return std::min(exact + steps, count - 1);
}

DistanceBuckets make_buckets(bool causal) {
  const int64_t count = causal ? kDistanceBuckets : kDistanceBuckets / 2;
  DistanceBuckets buckets;
  buckets.causal = causal;
  buckets.last = static_cast<int32_t>(count - 1);
  buckets.other_side = static_cast<int32_t>(count);
  for (int64_t far = 0; far < DistanceBuckets::kMaxDistance; ++far) {
    buckets.near[far] = static_cast<uint8_t>(bucket_of(far, count));
  }
  return buckets;
}

const DistanceBuckets& buckets_of(bool causal) {
  static const DistanceBuckets one_side = make_buckets(true), both_sides = make_buckets(false);
  return causal ? one_side : both_sides;
}

}  // namespace

int64_t distance_bucket(int64_t distance, bool causal) {
  return buckets_of(causal).of(distance);
}

Tensor distance_ids(int64_t first, int64_t count, bool causal, Device device, int64_t heads) {
  const Tensor ids = Tensor::empty({heads, count}, DType::i32, device);
  const DistanceBuckets& buckets = buckets_of(causal);
  if constexpr (kCuda) {
    if (on_cuda(ids)) {
      cuda::distance_ids(first, buckets, ids);
      return ids;
    }
  }
  for (int64_t i = 0; i < heads * count; ++i) {
    ids.data<int32_t>()[i] = buckets.of_head(i / count, first + i % count);
  }
  return ids;
}

}  // namespace linnet
