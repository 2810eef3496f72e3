// Softmax attention by cuDNN as one more line of `linnet bench attention`.
#pragma once

#include "recipes/engine/bench/operation.h"

namespace linnet {

// The name under which softmax attention by cuDNN is measured.
inline constexpr const char* kCudnnSoftmax = "softmax, cuDNN";

namespace cuda {

// One length, measured as mechanisms are. Before it is timed its result and gradients, on the same
// inputs, are compared with those of linnet's own kernels in f32: Error when they are further apart
// than rounding to bf16 brings them.
OperationBench bench_cudnn_softmax(const OperationOptions& options, Form form, int64_t length);

}  // namespace cuda
}  // namespace linnet
