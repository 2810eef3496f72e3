// Times attention mechanisms alone.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/bench/operation.h"

namespace linnet {

struct AttentionBenchOptions : OperationOptions {
  std::vector<std::string> mechanisms;  // empty: those that have the form
  Form form = Form::causal;
  bool all = false;  // also those that lack the form, in the other of causal and noncausal
  // Only those that declare work of T or T ln T, in the form where they do so: this one, else the
  // other.
  bool linear = false;
  bool cudnn = false;  // also softmax attention by cuDNN, after the mechanisms
  // "key=value" of the one mechanism that is named, as in a recipe's model.attention.
  std::vector<std::string> parameters;
};

// Calls on_point for each as it is measured. At most options.runs are timed; a run that takes more
// than 8 seconds is not repeated. On a CUDA device runs alternate between inputs that together do
// not fit its cache. Gradients of inputs are written, not added. Throws UsageError for sizes below
// 1, a mechanism or a length named twice, the cross form, parameters without one mechanism, a named
// mechanism that lacks the form, and `cudnn` on a CPU, in f32 or where cuDNN is missing; Error
// where cuDNN's results are wrong.
std::vector<OperationBench> bench_attention(const AttentionBenchOptions& options,
                                            const OnPoint& on_point = {});

// Whether one of the mechanisms that would be measured declares work of T or T ln T there.
bool declares_linear_work(const AttentionBenchOptions& options);

}  // namespace linnet
