// T5's relative bias (Raffel et al. 2020): a learned bias for every head and bucket of distances.
#pragma once

#include <cmath>

#include "attention/common/distance_ids.h"
#include "attention/reference.h"

namespace linnet {

class DistanceBias {
 public:
  // Declares `distance_bias` [32 H, 1] in `tied`, one for all layers: the buckets of head 0 first.
  DistanceBias(const MixerOptions& options, const ParameterScope& tied);
  // Bias [H, count] of keys at the distances (key - query) first, first + 1, ...
  Variable table(int64_t first, int64_t count, Device device) const;
  double bytes(DType dtype) const;

 private:
  int64_t heads_;
  bool causal_;
  Variable bias_;
};

// The literal bucket of a distance.
inline size_t reference_distance_bucket(int64_t distance, bool causal) {
  const double far = static_cast<double>(causal ? -distance : std::abs(distance));
  const double exact = causal ? 16 : 8, last = causal ? 31 : 15;
  const double bucket = far < exact
                            ? far
                            : std::min(last, exact + std::floor(std::log(far / exact) /
                                                                std::log(128 / exact) * exact));
  return static_cast<size_t>(!causal && distance > 0 ? 16 : 0) + static_cast<size_t>(bucket);
}

// The literal bias of a head.
template <typename Number>
Number reference_distance_bias(const ReferenceSequence<Number>& s, int64_t h, int64_t distance) {
  const size_t bucket = reference_distance_bucket(distance, s.form == Form::causal);
  return s.parameter("distance_bias")[static_cast<size_t>(h) * kDistanceBuckets + bucket];
}

}  // namespace linnet
