#include "recipes/engine/bench/train.h"

#include <algorithm>

#include "core/cuda/backend.h"
#include "core/device.h"
#include "core/gemm.h"
#include "recipes/engine/bench/timing.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

TrainBench bench_point(const Recipe& recipe, const std::string& label, int64_t steps, Device device,
                       const std::function<void(int64_t update)>& on_update, Job& job) {
  const UseKernels kernels(recipe.train.backend, device);
  job.require_same_recipe(recipe);
  std::unique_ptr<Task> task;
  job.leader_first([&] { task = make_task(recipe); });
  const std::unique_ptr<Transformer> model =
      build_model(recipe, task->sizes(), device, ModelUse::training);
  Updater updater = make_updater(recipe, model->parameters(), job);
  const size_t lasting = allocated_bytes(device) - model->parameters().gradients().bytes();
  TrainStep step(recipe, *task, *model, updater, job);
  Progress progress;
  int64_t next = 0;
  size_t part = 0;
  const auto next_batch = [&] {
    const ExampleRange& range = step.micro_batches()[part];
    const Batch batch = task->train_batch(next + range.first, range.count);
    if (++part == step.micro_batches().size()) {
      part = 0;
      next += step.examples_per_update();
    }
    return batch;
  };
  TrainBench result;
  result.label = label;
  result.parameters = model->parameters().count();
  const int warm_up = device.kind == DeviceKind::cuda ? 2 : 1;
  for (int i = 0; i < warm_up; ++i) {
    on_update(0);
    const double before = gemm_flop_count();
    step.run(progress, next_batch);
    // Counted in the first update: a CUDA graph's replays are not counted.
    if (i == 0) result.gemm_gflop = (gemm_flop_count() - before) * 1e-9;
  }
  reset_peak_memory(device);
  std::vector<double> seconds;
  for (int64_t i = 0; i < steps; ++i) {
    on_update(i);
    seconds.push_back(time_once(device, [&] {
      const UpdateResult update = step.run(progress, next_batch);
      result.tokens_per_step = update.tokens;
    }));
  }
  result.step_seconds = median(std::move(seconds));
  result.peak_bytes = peak_allocated_bytes(device);
  result.working_bytes = result.peak_bytes - lasting;
  return result;
}

}  // namespace

std::vector<TrainBench> bench_train(const std::vector<RecipePoint>& recipes, int64_t steps,
                                    Device device, const OnPart& on_update, Job& job) {
  std::vector<TrainBench> results;
  for (const RecipePoint& point : recipes) {
    const auto tell = [&](int64_t update) {
      if (!on_update) return;
      on_update(concat("updates of ", point.label.empty() ? "the recipe" : point.label),
                std::ssize(results) * steps + update, std::ssize(recipes) * steps);
    };
    results.push_back(bench_point(parse_recipe(point.node), point.label, steps, device, tell, job));
  }
  return results;
}

double measure_gemm_peak(DType dtype, Device device) {
  const int64_t size =
      kCudaBackend == CudaBackend::on && device.kind == DeviceKind::cuda ? 4096 : 512;
  const Tensor a = bench_values({size, size}, 1, dtype, device);
  const Tensor b = bench_values({size, size}, 2, dtype, device);
  const Tensor c = Tensor::zeros({size, size}, dtype, device);
  double best = 0;
  for (int run = 0; run < 20; ++run) {
    const double seconds = time_once(device, [&] {
      for (int i = 0; i < 8; ++i) gemm(a, Transpose::no, b, Transpose::no, c);
    });
    best = std::max(best, 8 * 2e-9 * static_cast<double>(size * size * size) / seconds);
  }
  return best;
}

}  // namespace linnet
