// Softmax cross-entropy on a CUDA device; autograd/loss.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// losses[r] = -log softmax(logits[r])[targets[r]] (f64 [rows], 0 where the target is -1); with
// `gradient`, the row becomes softmax - onehot (0 where unscored). Targets outside [-1, classes)
// give NaN: the host cannot check them without waiting.
void softmax_rows(const Tensor& logits, const Tensor& targets, const Tensor& losses, bool gradient);

}  // namespace linnet::cuda
