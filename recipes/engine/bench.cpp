#include "recipes/engine/bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "attention/define.h"
#include "attention/primitives/depthwise_conv.h"
#include "attention/registry.h"
#include "core/cuda/backend.h"
#include "core/cuda/cudnn.h"
#include "core/device.h"
#include "core/gemm.h"
#include "core/kernel_choice.h"
#include "recipes/engine/bench_timing.h"
#include "recipes/engine/cuda/bench_cudnn.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/recipe_merge.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

TrainBench bench_point(const Recipe& recipe, const std::string& label, int64_t steps,
                       Device device) {
  const UseKernels kernels(recipe.train.backend, device);
  const std::unique_ptr<Task> task = make_task(recipe);
  const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes(), device);
  Updater updater = make_updater(recipe, model->parameters());
  const size_t lasting = allocated_bytes(device) - model->parameters().gradients().bytes();
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
  for (int i = 0; i < warm_up; ++i) {
    const double before = gemm_flop_count();
    step.run(progress, next_batch);
    // Of the first one: what a CUDA graph replays is not counted.
    if (i == 0) result.gemm_gflop = (gemm_flop_count() - before) * 1e-9;
  }
  reset_peak_memory(device);
  std::vector<double> seconds;
  for (int64_t i = 0; i < steps; ++i) {
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

// The slope of the least-squares line through the logarithms.
double exponent_of(const std::vector<const AttentionBench*>& points,
                   const std::function<double(const AttentionBench&)>& figure) {
  const auto count = static_cast<double>(points.size());
  double x_mean = 0, y_mean = 0, xx = 0, xy = 0;
  for (const AttentionBench* point : points) {
    x_mean += std::log(static_cast<double>(point->length)) / count;
    y_mean += std::log(figure(*point)) / count;
  }
  for (const AttentionBench* point : points) {
    const double x = std::log(static_cast<double>(point->length)) - x_mean;
    xx += x * x;
    xy += x * (std::log(figure(*point)) - y_mean);
  }
  return xy / xx;
}

ConfigNode parameters_of(const AttentionBenchOptions& options) {
  require_usage(options.parameters.empty() || options.mechanisms.size() == 1,
                "bench attention: --set is for one mechanism, ", options.mechanisms.size(),
                " are named");
  ConfigNode values = ConfigNode::map();
  std::vector<Override> overrides;
  for (const std::string& text : options.parameters) {
    overrides.push_back(parse_override(text, "--set"));
  }
  apply_overrides(values, overrides);
  return values;
}

std::vector<const Mechanism*> chosen_mechanisms(const AttentionBenchOptions& options) {
  std::vector<const Mechanism*> chosen;
  for (const std::string& name : options.mechanisms) chosen.push_back(&find_mechanism(name));
  for (const Mechanism& mechanism : mechanisms()) {
    if (options.mechanisms.empty()) chosen.push_back(&mechanism);
  }
  return chosen;
}

// The form in which a mechanism is measured; none when it is left out.
std::optional<Form> form_of(const Mechanism& mechanism, const AttentionBenchOptions& options) {
  const auto measured = [&](Form form) {
    return mechanism.traits.has(form) &&
           (!options.linear ||
            stated_growth(mechanism.traits_of(parameters_of(options)), form).power == 1);
  };
  if (measured(options.form)) return options.form;
  const Form other = options.form == Form::causal ? Form::noncausal : Form::causal;
  if ((options.all || options.linear) && measured(other)) return other;
  return std::nullopt;
}

// Throws UsageError where options.cudnn cannot be done.
void require_cudnn(const AttentionBenchOptions& options) {
  require_usage(options.device.kind == DeviceKind::cuda,
                "--cudnn needs a CUDA device, and this runs on ", name_of(options.device),
                "; use --device cuda");
  require_usage(options.dtype == DType::bf16, "--cudnn measures bf16; add --dtype bf16");
  if constexpr (kCuda) {
    const std::string problem = cuda::cudnn_problem();
    require_usage(problem.empty(), "--cudnn: ", problem);
  }
}

// Twice in one table would also count twice in the growth.
template <typename T>
void require_different(const char* what, const std::vector<T>& values) {
  for (auto at = values.begin(); at != values.end(); ++at) {
    require_usage(std::find(values.begin(), at, *at) == at, "bench: ", what, " ", *at,
                  " is named twice");
  }
}

void require_sizes(const AttentionBenchOptions& options) {
  const auto positive = [](const char* what, int64_t value) {
    require_usage(value >= 1, "bench: ", what, " must be at least 1, got ", value);
  };
  positive("--batch", options.batch);
  positive("--heads", options.heads);
  positive("--head-width", options.head_width);
  positive("--runs", options.runs);
  for (const int64_t length : options.lengths) positive("a length", length);
  require_different("the length", options.lengths);
  require_usage(!options.cold || options.device.kind == DeviceKind::cpu,
                "bench: --cold is for a CPU; on ", name_of(options.device),
                " runs take inputs by turns that its cache does not hold anyway");
}

// Sets times and memory: of `run`, which takes the inputs by turns, and of its backward pass from
// `seed`.
void measure(AttentionBench& result, const AttentionBenchOptions& options,
             const std::function<Variable()>& run, const Tensor& seed) {
  const Device device = options.device;
  const std::function<void()> prepare = options.cold ? empty_caches : std::function<void()>();
  const auto forward = [&] {
    const NoGrad off;
    run();
  };
  result.forward = time_runs(device, options.runs, forward, prepare);
  reset_peak_memory(device);
  const size_t held = allocated_bytes(device);
  const auto forward_backward = [&] { backward({run()}, {seed}); };
  result.forward_backward = time_runs(device, options.runs, forward_backward, prepare);
  result.peak_bytes = peak_allocated_bytes(device) - held;
}

AttentionBench bench_mechanism(const Mechanism& mechanism, const AttentionBenchOptions& options,
                               Form form, int64_t length) {
  const Device device = options.device;
  ParameterSet parameters;
  const ParameterScope root(parameters);
  MixerOptions mixer_options;
  mixer_options.width = options.heads * options.head_width;
  mixer_options.heads = options.heads;
  mixer_options.form = form;
  mixer_options.max_length = length;
  const ConfigNode values = parameters_of(options);
  const auto mixer = mechanism.make(values, mixer_options,
                                    {root.child("attention"), root.child("tied_attention")});
  const DType dtype = options.dtype;
  parameters.materialize(1, DType::f32, dtype, device);
  // Mechanisms without the usual four projections are timed with the maps that they have.
  const auto* attention = dynamic_cast<const AttentionMixer*>(mixer.get());
  const Shape heads{options.batch, length, options.heads, options.head_width};
  const Shape tokens{options.batch, length, mixer_options.width};
  std::vector<std::array<Tensor, 4>> inputs;
  for (uint64_t i = 0; i < 4; ++i) {
    const Tensor x = bench_numbers(i < 3 ? heads : tokens, i + 1, dtype, device);
    if (i == 0) inputs.resize(static_cast<size_t>(inputs_by_turns(4 * x.bytes(), device)));
    for (auto& each : inputs) each[i] = &each == &inputs.front() ? x : x.clone();
  }
  const Tensor seed = bench_numbers(attention != nullptr ? heads : tokens, 5, dtype, device);
  MixerContext context;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < options.batch * length; ++i) {
    positions.push_back(static_cast<int32_t>(i % length));
  }
  context.positions = Tensor::from(positions, {options.batch, length}, device);
  AttentionBench result{mechanism.name, form,          options.batch,
                        length,         options.heads, options.head_width};
  result.growth = stated_growth(mechanism.traits_of(values), form);
  const ActivationsIn activations(dtype);
  size_t turn = 0;
  const auto run = [&] {
    const std::array<Tensor, 4>& x = inputs[turn++ % inputs.size()];
    const auto leaf = [&x](size_t i) { return Variable(x[i], true); };
    const MixInput input{leaf(0), leaf(1), leaf(2), leaf(3), {}};
    return attention != nullptr ? attention->mix(input, context, {}).y
                                : mixer->forward(input.x, context, {}).y;
  };
  const MixerCost cost = mixer->cost({options.batch, length, 0, dtype});
  result.multiply_adds = attention != nullptr ? cost.mixing : cost.multiply_adds();
  measure(result, options, run, seed);
  return result;
}

AttentionBench bench_convolution(int64_t taps, const AttentionBenchOptions& options,
                                 int64_t length) {
  const Device device = options.device;
  const Shape shape{options.batch, length, options.heads, options.head_width};
  const Tensor x = bench_numbers(shape, 1, options.dtype, device);
  std::vector<Tensor> inputs(static_cast<size_t>(inputs_by_turns(x.bytes(), device)), x);
  for (size_t i = 1; i < inputs.size(); ++i) inputs[i] = x.clone();
  const Tensor filters = bench_numbers({options.heads, taps}, 2, options.dtype, device);
  const Tensor seed = bench_numbers(shape, 3, options.dtype, device);
  AttentionBench result{concat("conv, ", taps, " taps"),
                        Form::causal,
                        options.batch,
                        length,
                        options.heads,
                        options.head_width};
  result.growth.power = 1;
  result.multiply_adds = static_cast<double>(taps) * static_cast<double>(shape.elements());
  size_t turn = 0;
  const auto run = [&] {
    const Variable in(inputs[turn++ % inputs.size()], true);
    return depthwise_conv(in, {}, Variable(filters, true), taps - 1, {});
  };
  measure(result, options, run, seed);
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

double measure_gemm_peak(DType dtype, Device device) {
  const int64_t size =
      kCudaBackend == CudaBackend::on && device.kind == DeviceKind::cuda ? 4096 : 512;
  const Tensor a = bench_numbers({size, size}, 1, dtype, device);
  const Tensor b = bench_numbers({size, size}, 2, dtype, device);
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

std::vector<AttentionBench> bench_attention(
    const AttentionBenchOptions& options,
    const std::function<void(const AttentionBench&)>& on_point) {
  require_usage(options.form != Form::cross, "bench attention: the form is causal or noncausal");
  require_sizes(options);
  if (options.cudnn) require_cudnn(options);
  require_different("mechanism", options.mechanisms);
  for (const std::string& name : options.mechanisms) {
    require_form(name, find_mechanism(name).traits, options.form);
  }
  std::vector<AttentionBench> results;
  const auto keep = [&](const AttentionBench& point) {
    results.push_back(point);
    if (on_point) on_point(point);
  };
  for (const Mechanism* mechanism : chosen_mechanisms(options)) {
    const std::optional<Form> form = form_of(*mechanism, options);
    if (!form) continue;
    for (const int64_t length : options.lengths) {
      keep(bench_mechanism(*mechanism, options, *form, length));
    }
  }
  if constexpr (kCuda) {
    if (options.cudnn) {
      for (const int64_t length : options.lengths) keep(cuda::bench_cudnn_softmax(options, length));
    }
  }
  return results;
}

std::vector<AttentionBench> bench_convolutions(
    const std::vector<int64_t>& taps, const AttentionBenchOptions& options,
    const std::function<void(const AttentionBench&)>& on_point) {
  require_sizes(options);
  for (const int64_t count : taps) {
    require_usage(count >= 1, "bench: --taps must be at least 1, got ", count);
  }
  require_different("the number of taps", taps);
  std::vector<AttentionBench> results;
  for (const int64_t count : taps) {
    for (const int64_t length : options.lengths) {
      results.push_back(bench_convolution(count, options, length));
      if (on_point) on_point(results.back());
    }
  }
  return results;
}

bool declares_linear_work(const AttentionBenchOptions& options) {
  const ConfigNode parameters = parameters_of(options);
  const std::vector<const Mechanism*> chosen = chosen_mechanisms(options);
  return std::any_of(chosen.begin(), chosen.end(), [&](const Mechanism* mechanism) {
    const std::optional<Form> form = form_of(*mechanism, options);
    // bench_attention says which form a named one lacks.
    if (!form) return !options.mechanisms.empty();
    return stated_growth(mechanism->traits_of(parameters), *form).power == 1;
  });
}

std::vector<AttentionGrowth> attention_growth(const std::vector<AttentionBench>& points) {
  std::map<std::string, std::vector<const AttentionBench*>> by_mechanism;
  std::vector<std::string> order;
  for (const AttentionBench& point : points) {
    if (by_mechanism[point.mechanism].empty()) order.push_back(point.mechanism);
    by_mechanism[point.mechanism].push_back(&point);
  }
  std::vector<AttentionGrowth> growth;
  for (const std::string& name : order) {
    const std::vector<const AttentionBench*>& own = by_mechanism[name];
    const bool grows = std::any_of(own.begin(), own.end(), [&](const AttentionBench* point) {
      return point->length != own.front()->length;
    });
    if (!grows) continue;
    AttentionGrowth& entry = growth.emplace_back();
    entry.mechanism = name;
    entry.form = own.front()->form;
    entry.forward = exponent_of(own, [](const AttentionBench& p) { return p.forward.least; });
    entry.forward_backward =
        exponent_of(own, [](const AttentionBench& p) { return p.forward_backward.least; });
    entry.memory =
        exponent_of(own, [](const AttentionBench& p) { return static_cast<double>(p.peak_bytes); });
    entry.stated = own.front()->growth;
    entry.declared = exponent_of(own, [&](const AttentionBench& p) {
      return entry.stated.at(static_cast<double>(p.length));
    });
  }
  return growth;
}

void require_growth(const std::vector<AttentionGrowth>& growth, double limit) {
  std::string faster;
  for (const AttentionGrowth& each : growth) {
    if (each.stated.power != 1) continue;
    const double allowed = each.declared + (limit - 1);
    if (each.forward <= allowed && each.forward_backward <= allowed) continue;
    faster += concat(faster.empty() ? "" : ", ", each.mechanism);
    if (each.stated.logarithm) faster += concat(" (T ln T: than to the ", allowed, ")");
  }
  require(faster.empty(),
          "these declare linear work, but take time that grows faster than T to the ", limit, ": ",
          faster);
}

}  // namespace linnet
