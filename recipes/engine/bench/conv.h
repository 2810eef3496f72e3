// Times causal depthwise convolutions alone.
#pragma once

#include <vector>

#include "recipes/engine/bench/operation.h"

namespace linnet {

// The primitive depthwise_conv alone, causal, one filter of so many taps per head: measured as
// mechanisms are, for each number of taps each length, and named "conv, 63 taps". Throws UsageError
// for sizes below 1, and for a number of taps or a length named twice.
std::vector<OperationBench> bench_convolutions(const std::vector<int64_t>& taps,
                                               const OperationOptions& options,
                                               const OnPoint& on_point = {});

}  // namespace linnet
