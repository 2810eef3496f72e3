// LARA's operations on a CUDA device, in f32.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// See attention/common/landmarks/landmarks.h; every output is overwritten.
void landmark_members(const Tensor& mask, const Tensor& members);
void landmark_logits(const Tensor& k, const Tensor& w, const Tensor& normalizer, const Tensor& mask,
                     double scale, bool squares, const Tensor& logits);
void landmark_logits_backward(const Tensor& k, const Tensor& w, const Tensor& normalizer,
                              const Tensor& mask, double scale, bool squares, const Tensor& dlogits,
                              const Tensor& dk, const Tensor& dw);

}  // namespace linnet::cuda
