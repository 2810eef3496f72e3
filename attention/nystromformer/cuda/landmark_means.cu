#include "attention/nystromformer/cuda/landmark_means.h"

#include "attention/nystromformer/landmark_means_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {

void cut_landmarks(const Tensor& mask, LandmarkPadding padding, const LandmarkCut& cut) {
  const int64_t T = cut.owner.size(1), C = cut.shares.size(1);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  int32_t *owner = pointer<int32_t>(cut.owner), *begins = pointer<int32_t>(cut.begins);
  float* shares = pointer<float>(cut.shares);
  uint8_t* used = pointer<uint8_t>(cut.used);
  // A thread scans a row: the rank of a token is a prefix sum of the mask.
  for_each("cut_landmarks", cut.owner.size(0), [=] __device__(int64_t b) {
    landmark_means_rule::cut_row<float>(
        valid != nullptr ? valid + b * T : nullptr, T, C, padding,
        {owner + b * T, begins + b * (C + 1), shares + b * C, used + b * C});
  });
}

void landmark_means(const Tensor& from, const LandmarkCut& cut, bool backward, const Tensor& to) {
  const Tensor& x = backward ? to : from;
  const landmark_means_rule::Means<float> rule{x.size(1),
                                               x.size(2),
                                               x.size(3),
                                               cut.shares.size(1),
                                               pointer<int32_t>(cut.owner),
                                               pointer<int32_t>(cut.begins),
                                               pointer<float>(cut.shares)};
  const float* in = pointer<float>(from);
  float* out = pointer<float>(to);
  for_each("landmark_means", to.elements(), [=] __device__(int64_t i) {
    out[i] = backward ? rule.gradient(in, i) : rule.mean(in, i);
  });
}

}  // namespace linnet::cuda
