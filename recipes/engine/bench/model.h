// Speed and memory of whole models by length, on random tokens.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "core/tensor.h"
#include "recipes/engine/model_bench.h"

namespace linnet {

struct ModelBenchOptions {
  BenchMode mode = BenchMode::train;
  std::vector<int64_t> lengths;
  std::optional<int64_t> batch;  // empty: doubled until memory ends, of which half is used
  std::optional<size_t> cpu_memory_bytes;  // that tensors on a CPU may hold; empty: all there is
  int64_t vocabulary = 256;
  int64_t runs = 5;  // timed at most; fewer where they take seconds
  Device device;
};

// What a measurement of a point is named by: all but its figures.
ModelBench name_bench(const Recipe& recipe, const std::string& label);

// Measures every point at every length; `on_result` is told of each as it is known, `before` of
// what is tried next. The recipe's data are not read. Where `batch` is given and does not fit, so
// is nothing.
std::vector<ModelBench> bench_model(const std::vector<RecipePoint>& points,
                                    const ModelBenchOptions& options, const OnPart& before = {},
                                    const std::function<void(const ModelBench&)>& on_result = {});

}  // namespace linnet
