#include "recipes/engine/bench/model.h"

#include <algorithm>
#include <array>

#include "autograd/variable.h"
#include "core/kernel_choice.h"
#include "core/memory_limit.h"
#include "recipes/engine/bench/random_task.h"
#include "recipes/engine/bench/timing.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

constexpr int64_t kClasses = 2;  // the head of a classifier is nothing beside its trunk

struct Trial {
  int64_t parameters = 0;
  double seconds = 0;
  size_t peak_bytes = 0;
};

// `runs` timed ones after those that warm up: a CUDA device's second update captures its graph.
void measure(Trial& trial, int64_t runs, Device device, const std::function<void()>& body) {
  reset_peak_memory(device);
  body();
  if (device.kind == DeviceKind::cuda) body();
  if (runs > 0) trial.seconds = 1e-3 * time_runs(device, runs, body).median;
  device_interface(device).synchronize();
  trial.peak_bytes = peak_allocated_bytes(device);
}

Trial train(const Recipe& recipe, const Task& task, const Transformer& model, int64_t batch,
            int64_t runs, Device device) {
  Updater updater = make_updater(recipe, model.parameters());
  TrainStep step(recipe, task, model, updater);
  Progress progress;
  const Batch rows = task.train_batch(0, batch);  // drawing others would be timed
  Trial trial{model.parameters().count(), 0, 0};
  measure(trial, runs, device, [&] { step.run(progress, [&] { return rows; }); });
  return trial;
}

Trial infer(const Task& task, const Transformer& model, int64_t batch, int64_t runs,
            Device device) {
  const NoGrad off;
  const size_t unused = model.parameters().gradients().bytes();
  Trial trial{model.parameters().count(), 0, 0};
  require_scoring_memory(model, batch, task.tokens_per_example());
  const DeviceBatch rows(task.train_batch(0, batch), device);
  measure(trial, runs, device, [&] { model.encode(rows.input, nullptr); });
  trial.peak_bytes -= unused;
  return trial;
}

// Whether an error says that there is no memory for a model, or for its batch.
bool ends_memory(const UsageError& error) {
  constexpr std::array kKeys = {"model", "train.micro_batch", "train.examples_per_update",
                                "evaluate.batch"};
  return error.code() == ErrorCode::out_of_range &&
         std::count(kKeys.begin(), kKeys.end(), error.key()) > 0;
}

class Point {
 public:
  Point(Recipe recipe, int64_t length, const ModelBenchOptions& options)
      : recipe_(std::move(recipe)), options_(options) {
    recipe_.data.context = length;
    recipe_.train.tokens_per_update.reset();
    const bool classes = task_kind(recipe_) == TaskKind::classification;
    sizes_ = {options.vocabulary, length, classes ? kClasses : 0};
  }

  // Empty where memory does not suffice.
  std::optional<Trial> attempt(int64_t batch, int64_t runs) {
    recipe_.train.examples_per_update = batch;
    recipe_.train.micro_batch = batch;
    const UseKernels kernels(recipe_.train.backend, options_.device);
    std::optional<CpuMemoryLimit> limit;
    if (options_.cpu_memory_bytes) limit.emplace(*options_.cpu_memory_bytes);
    try {
      return measured(batch, runs);
    } catch (const OutOfMemory&) {
      return std::nullopt;
    } catch (const UsageError& error) {
      if (!ends_memory(error)) throw;
      return std::nullopt;
    }
  }

  // The last of 1, 2, 4, ... rows that fit: half of the first that do not; 0 where one does not.
  int64_t find_batch(const std::function<void(int64_t)>& before) {
    for (int64_t batch = 1;; batch *= 2) {
      before(batch);
      if (!attempt(batch, 0)) return batch / 2;
    }
  }

 private:
  Trial measured(int64_t batch, int64_t runs) const {
    const bool training = options_.mode == BenchMode::train;
    const std::unique_ptr<Task> task = make_random_task(recipe_, sizes_);
    const std::unique_ptr<Transformer> model = build_model(
        recipe_, sizes_, options_.device, training ? ModelUse::training : ModelUse::scoring);
    require_context(*model, sizes_.length);
    return training ? train(recipe_, *task, *model, batch, runs, options_.device)
                    : infer(*task, *model, batch, runs, options_.device);
  }

  Recipe recipe_;
  const ModelBenchOptions& options_;
  ModelSizes sizes_;
};

// "local, lavo", each once, of a section for all layers or a list for some each.
std::string mechanisms_of(const ConfigNode& attention) {
  std::vector<std::string> names;
  const auto add = [&](const ConfigNode& section) {
    const std::string& name = section.find("name")->raw();
    if (std::count(names.begin(), names.end(), name) == 0) names.push_back(name);
  };
  if (attention.is_map()) add(attention);
  if (attention.is_sequence()) {
    for (const ConfigNode& section : attention.items()) add(section);
  }
  std::string text;
  for (const std::string& name : names) text += concat(text.empty() ? "" : ", ", name);
  return text;
}

ModelBench bench_point(const Recipe& recipe, const std::string& label, int64_t length,
                       const ModelBenchOptions& options,
                       const std::function<void(int64_t batch)>& before) {
  ModelBench result = name_bench(recipe, label);
  result.length = length;
  Point point(recipe, length, options);
  const int64_t batch = options.batch ? *options.batch : point.find_batch(before);
  if (batch == 0) return result;
  before(batch);
  const std::optional<Trial> trial = point.attempt(batch, options.runs);
  if (!trial) return result;
  result.batch = batch;
  result.parameters = trial->parameters;
  result.seconds = trial->seconds;
  result.peak_bytes = trial->peak_bytes;
  return result;
}

}  // namespace

ModelBench name_bench(const Recipe& recipe, const std::string& label) {
  ModelBench result;
  result.recipe = recipe.name;
  result.point = label;
  result.attention = mechanisms_of(*recipe.resolved.find("model")->find("attention"));
  result.published = recipe.published;
  result.precision = recipe.train.precision == Precision::bf16 ? "bf16" : "f32";
  return result;
}

std::vector<ModelBench> bench_model(const std::vector<RecipePoint>& points,
                                    const ModelBenchOptions& options, const OnPart& before,
                                    const std::function<void(const ModelBench&)>& on_result) {
  std::vector<ModelBench> results;
  const auto total = std::ssize(points) * std::ssize(options.lengths);
  for (const RecipePoint& point : points) {
    const Recipe recipe = parse_recipe(point.node);
    for (const int64_t length : options.lengths) {
      const auto tell = [&](int64_t batch) {
        if (!before) return;
        before(concat(point.label.empty() ? "the recipe" : point.label, " at length ", length,
                      ", batch ", batch),
               std::ssize(results), total);
      };
      results.push_back(bench_point(recipe, point.label, length, options, tell));
      if (on_result) on_result(results.back());
    }
  }
  return results;
}

}  // namespace linnet
