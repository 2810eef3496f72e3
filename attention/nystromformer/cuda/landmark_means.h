// Nystroemformer's landmarks on a CUDA device, in f32.
#pragma once

#include "attention/nystromformer/landmark_means.h"

namespace linnet::cuda {

// Fills in the runs.
void cut_landmarks(const Tensor& mask, LandmarkPadding padding, const LandmarkCut& cut);
}  // namespace linnet::cuda
