// Softmax attention by cuDNN as one more line of `linnet bench attention`.
#pragma once

#include "recipes/engine/bench/attention.h"

namespace linnet::cuda {

// One length, measured as mechanisms are. Before it is timed its result and gradients, on the same
// inputs, are compared with those of linnet's own kernels in f32: Error when they are further apart
// than rounding to bf16 brings them.
OperationBench bench_cudnn_softmax(const AttentionBenchOptions& options, int64_t length);

}  // namespace linnet::cuda
