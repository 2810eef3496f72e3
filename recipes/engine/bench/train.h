// Times training steps of a recipe.
#pragma once

#include <string>
#include <vector>

#include "core/progress.h"
#include "core/tensor.h"
#include "recipes/engine/job.h"
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

// Times whole updates (data, forward, backward, clipping, optimizer) of each recipe. `steps` timed
// updates after one warm-up (on a GPU two: the second one captures CUDA graphs). `on_update`, if
// any, is told of each update before it. Several processes make each update together; times and
// memory are those of the calling one.
std::vector<TrainBench> bench_train(const std::vector<RecipePoint>& recipes, int64_t steps,
                                    Device device = {}, const OnPart& on_update = {},
                                    Job& job = alone());

// GFLOP/s of products of the device (of a CPU: with the threads in use): the best of several runs
// of a product, on a CPU one whose operands stay in cache.
double measure_gemm_peak(DType dtype = DType::f32, Device device = {});

}  // namespace linnet
