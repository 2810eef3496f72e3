// Speed and memory of whole models by length, on random tokens.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "core/tensor.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// Whole updates, or forward passes of the trunk (embedding and blocks, no head) without gradients.
enum class BenchMode { train, inference };

struct ModelBenchOptions {
  BenchMode mode = BenchMode::train;
  std::vector<int64_t> lengths;
  std::optional<int64_t> batch;  // empty: doubled until memory ends, of which half is used
  std::optional<size_t> cpu_memory_bytes;  // that tensors on a CPU may hold; empty: all there is
  int64_t vocabulary = 256;
  int64_t runs = 5;  // timed at most; fewer where they take seconds
  Device device;
};

// A point of a recipe at one length.
struct ModelBench {
  std::string recipe, point;                 // its name; "" where nothing is swept
  std::string attention;                     // the mechanisms of its layers, "local, lavo"
  std::optional<PublishedConfig> published;  // of the recipe at that point
  std::string precision;                     // "f32" or "bf16"
  int64_t length = 0, batch = 0;             // rows of `length` tokens; batch 0: not even one fits
  int64_t parameters = 0;
  double seconds = 0;     // median of an update or a forward pass
  size_t peak_bytes = 0;  // held by tensors; of inference without gradients, which it does not use
  bool fits() const { return batch > 0; }
  double rate() const { return 1 / seconds; }  // of updates or forward passes a second
};

// Measures every point at every length; `on_result` is told of each as it is known, `before` of
// what is tried next. The recipe's data are not read. Where `batch` is given and does not fit, so
// is nothing.
std::vector<ModelBench> bench_model(const std::vector<RecipePoint>& points,
                                    const ModelBenchOptions& options, const OnPart& before = {},
                                    const std::function<void(const ModelBench&)>& on_result = {});

}  // namespace linnet
