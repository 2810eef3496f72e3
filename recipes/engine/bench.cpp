#include "recipes/engine/bench.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "attention/define.h"
#include "attention/registry.h"
#include "core/cuda/backend.h"
#include "core/device.h"
#include "core/gemm.h"
#include "recipes/engine/trainer.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

double time_once(Device device, const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  device_interface(device).synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double median_seconds(Device device, int64_t runs, const std::function<void()>& body) {
  time_once(device, body);
  std::vector<double> seconds;
  for (int64_t i = 0; i < runs; ++i) seconds.push_back(time_once(device, body));
  return median(std::move(seconds));
}

TrainBench bench_point(const Recipe& recipe, const std::string& label, int64_t steps,
                       Device device) {
  const std::unique_ptr<Task> task = make_task(recipe);
  const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes(), device);
  Updater updater = make_updater(recipe, model->parameters());
  TrainStep step(recipe, *task, *model, updater);
  Progress progress;
  int64_t next = 0;
  size_t part = 0;
  const auto next_batch = [&] {
    const int64_t count = step.micro_batches()[part];
    part = (part + 1) % step.micro_batches().size();
    next += count;
    return task->train_batch(next - count, count);
  };
  TrainBench result;
  result.label = label;
  result.parameters = model->parameters().count();
  const int warm_up = device.kind == DeviceKind::cuda ? 2 : 1;
  for (int i = 0; i < warm_up; ++i) step.run(progress, next_batch);
  reset_peak_memory(device);
  std::vector<double> seconds;
  const double before = gemm_flop_count();
  for (int64_t i = 0; i < steps; ++i) {
    seconds.push_back(time_once(device, [&] {
      const UpdateResult update = step.run(progress, next_batch);
      result.tokens_per_step = update.tokens;
    }));
  }
  result.gemm_gflop = (gemm_flop_count() - before) / static_cast<double>(steps) * 1e-9;
  result.step_seconds = median(std::move(seconds));
  result.peak_bytes = peak_allocated_bytes(device);
  return result;
}

Variable random_variable(const Shape& shape, uint64_t site, Device device) {
  const Tensor values = Tensor::zeros(shape);
  const RandomKey key{1, 0, site};
  for (int64_t i = 0; i < values.elements(); ++i) {
    values.data<float>()[i] = static_cast<float>(key.normal(static_cast<uint64_t>(i)));
  }
  return Variable(values.to(device), true);
}

AttentionBench bench_mechanism(const Mechanism& mechanism, const AttentionBenchOptions& options,
                               int64_t length) {
  const Device device = options.device;
  ParameterSet parameters;
  const ParameterScope root(parameters);
  MixerOptions mixer_options;
  mixer_options.width = options.heads * options.head_width;
  mixer_options.heads = options.heads;
  mixer_options.form = options.form;
  mixer_options.max_length = length;
  const auto mixer = mechanism.make(ConfigNode::map(), mixer_options,
                                    {root.child("attention"), root.child("tied_attention")});
  parameters.materialize(1, DType::f32, DType::f32, device);
  // Mechanisms without the usual four projections are timed with the maps that they have.
  const auto* attention = dynamic_cast<const AttentionMixer*>(mixer.get());
  const Shape heads{options.batch, length, options.heads, options.head_width};
  const Shape tokens{options.batch, length, mixer_options.width};
  const MixInput input{random_variable(heads, 1, device),
                       random_variable(heads, 2, device),
                       random_variable(heads, 3, device),
                       random_variable(tokens, 4, device),
                       {}};
  const Tensor seed = random_variable(attention != nullptr ? heads : tokens, 5, device).value();
  MixerContext context;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < options.batch * length; ++i) {
    positions.push_back(static_cast<int32_t>(i % length));
  }
  context.positions = Tensor::from(positions, {options.batch, length}, device);
  AttentionBench result{mechanism.name, options.form,  options.batch,
                        length,         options.heads, options.head_width};
  const auto run = [&] {
    return attention != nullptr ? attention->mix(input, context, {}).y
                                : mixer->forward(input.x, context, {}).y;
  };
  const MixerCost cost = mixer->cost({options.batch, length, 0, DType::f32});
  result.multiply_adds = attention != nullptr ? cost.mixing : cost.multiply_adds();
  result.forward_ms = 1e3 * median_seconds(device, options.runs, [&] {
                        const NoGrad off;
                        run();
                      });
  reset_peak_memory(device);
  const size_t held = allocated_bytes(device);
  result.forward_backward_ms =
      1e3 * median_seconds(device, options.runs, [&] { backward({run()}, {seed}); });
  result.peak_bytes = peak_allocated_bytes(device) - held;
  return result;
}

}  // namespace

std::vector<TrainBench> bench_train(const ConfigNode& recipe_node, int64_t steps, Device device) {
  const Recipe base = parse_recipe(recipe_node);
  std::vector<TrainBench> results;
  for (const SweepPoint& point : sweep_points(base.sweep)) {
    ConfigNode node = recipe_node;
    apply_overrides(node, point.overrides);
    results.push_back(bench_point(parse_recipe(node), point.label, steps, device));
  }
  return results;
}

double measure_gemm_peak(Device device) {
  const int64_t size =
      kCudaBackend == CudaBackend::on && device.kind == DeviceKind::cuda ? 8192 : 512;
  const Tensor a = random_variable({size, size}, 1, device).value();
  const Tensor b = random_variable({size, size}, 2, device).value();
  const Tensor c = Tensor::zeros({size, size}, DType::f32, device);
  double best = 0;
  for (int run = 0; run < 20; ++run) {
    const double seconds = time_once(device, [&] {
      for (int i = 0; i < 8; ++i) gemm(a, Transpose::no, b, Transpose::no, c);
    });
    best = std::max(best, 8 * 2e-9 * static_cast<double>(size * size * size) / seconds);
  }
  return best;
}

std::vector<AttentionBench> bench_attention(const AttentionBenchOptions& options) {
  require_usage(options.form != Form::cross, "bench attention: the form is causal or noncausal");
  const auto positive = [](const char* what, int64_t value) {
    require_usage(value >= 1, "bench attention: ", what, " must be at least 1, got ", value);
  };
  positive("--batch", options.batch);
  positive("--heads", options.heads);
  positive("--head-width", options.head_width);
  positive("--runs", options.runs);
  for (const int64_t length : options.lengths) positive("a length", length);
  std::vector<const Mechanism*> chosen;
  for (const std::string& name : options.mechanisms) {
    chosen.push_back(&find_mechanism(name));
    require_form(name, chosen.back()->traits, options.form);
  }
  if (chosen.empty()) {
    for (const Mechanism& mechanism : mechanisms()) chosen.push_back(&mechanism);
  }
  std::vector<AttentionBench> results;
  for (const Mechanism* mechanism : chosen) {
    if (!mechanism->traits.has(options.form)) continue;
    for (const int64_t length : options.lengths) {
      results.push_back(bench_mechanism(*mechanism, options, length));
    }
  }
  return results;
}

}  // namespace linnet
