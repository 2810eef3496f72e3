#include "attention/nystromformer/cuda/landmark_means.h"

#include "attention/nystromformer/landmark_means_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {

void cut_landmarks(const Tensor& mask, LandmarkPadding padding, const LandmarkCut& cut) {
  const int64_t T = cut.owner.size(1), C = cut.shares.size(1);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  int32_t* owner = pointer<int32_t>(cut.owner);
  float* shares = pointer<float>(cut.shares);
  uint8_t* used = pointer<uint8_t>(cut.used);
  // A thread scans a row: the rank of a token is a prefix sum of the mask.
  for_each("cut_landmarks", cut.owner.size(0), [=] __device__(int64_t b) {
    landmark_means_rule::cut_row<float>(valid != nullptr ? valid + b * T : nullptr, T, C, padding,
                                        {owner + b * T, shares + b * C, used + b * C});
  });
}

}  // namespace linnet::cuda
