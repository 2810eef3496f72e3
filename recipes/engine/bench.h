// Benchmarks: training steps of a recipe, and attention mechanisms alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attention/growth.h"
#include "core/json.h"
#include "layers/token_mixer.h"
#include "recipes/engine/bench_timing.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// One point of `linnet bench train`.
struct TrainBench {
  std::string label;
  int64_t parameters = 0;
  int64_t tokens_per_step = 0;
  double step_seconds = 0;  // median
  double gemm_gflop = 0;    // of matrix products in the first step, forward and backward
  size_t peak_bytes = 0;    // held by tensors
  // Of them those that are neither weights (their bf16 copies included) nor optimizer state:
  // gradients, activations, what operations and CUDA graphs need.
  size_t working_bytes = 0;
  double tokens_per_s() const { return static_cast<double>(tokens_per_step) / step_seconds; }
  double gflop_per_s() const { return gemm_gflop / step_seconds; }
};

// Times whole updates (data, forward, backward, clipping, optimizer) for every point of the
// recipe's sweep, or for the recipe alone. `steps` timed updates after one warm-up (on a GPU two:
// the second one captures CUDA graphs).
std::vector<TrainBench> bench_train(const ConfigNode& recipe_node, int64_t steps,
                                    Device device = {});

// GFLOP/s of products of the device (of a CPU: with the threads in use): the best of several runs
// of a product, on a CPU one whose operands stay in cache.
double measure_gemm_peak(DType dtype = DType::f32, Device device = {});

// The name under which softmax attention by cuDNN is measured.
inline constexpr const char* kCudnnSoftmax = "softmax, cuDNN";

// One mechanism alone: projections excluded, except for mechanisms without the usual four, which
// are timed with their own.
struct AttentionBench {
  std::string mechanism;
  Form form = Form::causal;
  int64_t batch = 0, length = 0, heads = 0, width = 0;
  double multiply_adds = 0;  // of one forward pass, as the mechanism declares
  RunTime forward = {}, forward_backward = {};
  size_t peak_bytes = 0;
  StatedGrowth growth = {};  // by the traits, for this form and these parameters
  // Two operations a multiply-add.
  double forward_gflop_per_s() const { return 2e-6 * multiply_adds / forward.median; }
};

struct AttentionBenchOptions {
  std::vector<std::string> mechanisms;  // empty: those that have the form
  Form form = Form::causal;
  bool all = false;  // also those that lack the form, in the other of causal and noncausal
  // Of those that declare work of T or T ln T: in the form where they do so there, else in the
  // other.
  bool linear = false;
  bool cudnn = false;  // also softmax attention by cuDNN, after the mechanisms
  std::vector<int64_t> lengths{4096};
  int64_t batch = 1, heads = 4, head_width = 64;
  int64_t runs = 5;
  // Each run begins with empty caches of the calling thread: short sequences too come from memory
  // then, as long ones do, and growth is that of the work. On a CPU.
  bool cold = false;
  DType dtype = DType::f32;  // of activations and parameters; or bf16
  Device device;
  // "key=value" of the one mechanism that is named, as in a recipe's model.attention.
  std::vector<std::string> parameters;
};

// Calls on_point for each as it is measured. At most options.runs are timed; a run that takes more
// than 8 seconds is not repeated. On a CUDA device runs take inputs by turns that together do not
// fit its cache. Gradients of inputs are written, not added. Throws UsageError for sizes below 1,
// a mechanism or a length named twice, the cross form, parameters without one mechanism, a named
// mechanism that lacks the form, and `cudnn` on a CPU, in f32 or where cuDNN is missing; Error
// where cuDNN's results are wrong.
std::vector<AttentionBench> bench_attention(
    const AttentionBenchOptions& options,
    const std::function<void(const AttentionBench&)>& on_point = {});

// The primitive depthwise_conv alone, causal, one filter of so many taps a head: measured as
// mechanisms are, for each number of taps each length, and named "conv, 63 taps". What the options
// say of mechanisms and forms is not looked at. Throws UsageError for sizes below 1, and for a
// number of taps or a length named twice.
std::vector<AttentionBench> bench_convolutions(
    const std::vector<int64_t>& taps, const AttentionBenchOptions& options,
    const std::function<void(const AttentionBench&)>& on_point = {});

// Whether one of the mechanisms that would be measured declares work of T or T ln T there.
bool declares_linear_work(const AttentionBenchOptions& options);

// With which power of the length T a mechanism's figures grow: the slope of the line through their
// logarithms, by least squares; of times through the least ones (RunTime).
struct AttentionGrowth {
  std::string mechanism;
  Form form = Form::causal;
  StatedGrowth stated = {};
  double forward = 0, forward_backward = 0, memory = 0;
  // The slope of what the traits state, through the same lengths: 1 for T, 2 for T^2, 1.11 for
  // T ln T from 2,048 to 32,768.
  double declared = 0;
};
// Of every mechanism with two lengths or more, in the order of the points.
std::vector<AttentionGrowth> attention_growth(const std::vector<AttentionBench>& points);
// Throws Error naming those that declare work of T, or T ln T, and take time that grows faster than
// with the power `limit`, or with as much more than T ln T as `limit` is more than 1.
void require_growth(const std::vector<AttentionGrowth>& growth, double limit);

}  // namespace linnet
