// Nystroemformer's landmarks on a CUDA device, in f32.
#pragma once

#include "attention/nystromformer/landmark_means.h"

namespace linnet::cuda {

// Fills in the runs.
void cut_landmarks(const Tensor& mask, LandmarkPadding padding, const LandmarkCut& cut);
// `to` becomes the means of `from`, or, backward, dx of dmeans.
void landmark_means(const Tensor& from, const LandmarkCut& cut, bool backward, const Tensor& to);

}  // namespace linnet::cuda
