#include "recipes/engine/bench/attention.h"

#include <algorithm>
#include <array>
#include <optional>

#include "attention/define.h"
#include "attention/registry.h"
#include "core/cuda/backend.h"
#include "core/cuda/cudnn.h"
#include "core/device.h"
#include "core/kernel_choice.h"
#include "recipes/engine/bench/cuda/bench_cudnn.h"
#include "recipes/engine/recipe_merge.h"

namespace linnet {
namespace {

ConfigNode parameters_of(const AttentionBenchOptions& options) {
  require_usage(options.parameters.empty() || options.mechanisms.size() == 1,
                Cause{ErrorCode::conflict, "--set"},
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
  require_usage(options.device.kind == DeviceKind::cuda, Cause{ErrorCode::conflict, "--cudnn"},
                "--cudnn needs a CUDA device, and this runs on ", name_of(options.device),
                "; use --device cuda");
  require_usage(options.dtype == DType::bf16, Cause{ErrorCode::conflict, "--cudnn"},
                "--cudnn measures bf16; add --dtype bf16");
  if constexpr (kCuda) {
    const std::string problem = cuda::cudnn_problem();
    require_usage(problem.empty(), Cause{ErrorCode::conflict, "--cudnn"}, "--cudnn: ", problem);
  }
}

OperationBench bench_mechanism(const Mechanism& mechanism, const AttentionBenchOptions& options,
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
    const Tensor x = bench_values(i < 3 ? heads : tokens, i + 1, dtype, device);
    if (i == 0) inputs.resize(static_cast<size_t>(alternating_inputs(4 * x.bytes(), device)));
    for (auto& each : inputs) each[i] = &each == &inputs.front() ? x : x.clone();
  }
  const Tensor seed = bench_values(attention != nullptr ? heads : tokens, 5, dtype, device);
  MixerContext context;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < options.batch * length; ++i) {
    positions.push_back(static_cast<int32_t>(i % length));
  }
  context.positions = Tensor::from(positions, {options.batch, length}, device);
  OperationBench result{mechanism.name, form,          options.batch,
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

}  // namespace

std::vector<OperationBench> bench_attention(const AttentionBenchOptions& options,
                                            const OnPoint& on_point) {
  require_usage(options.form != Form::cross, Cause{ErrorCode::conflict, "--form"},
                "bench attention: the form is causal or noncausal");
  require_sizes(options);
  if (options.cudnn) require_cudnn(options);
  require_different("MECHANISM", "mechanism", options.mechanisms);
  for (const std::string& name : options.mechanisms) {
    require_form(name, find_mechanism(name).traits, options.form);
  }
  std::vector<OperationBench> results;
  const auto keep = [&](const OperationBench& point) {
    results.push_back(point);
    if (on_point) on_point(point);
  };
  const std::vector<const Mechanism*> chosen = chosen_mechanisms(options);
  const int64_t measured = std::count_if(
      chosen.begin(), chosen.end(),
      [&](const Mechanism* mechanism) { return form_of(*mechanism, options).has_value(); });
  for (const Mechanism* mechanism : chosen) {
    const std::optional<Form> form = form_of(*mechanism, options);
    if (!form) continue;
    for (const int64_t length : options.lengths) {
      if (options.before_point) {
        options.before_point(concat(mechanism->name, ", ", name_of(*form), ", length ", length),
                             std::ssize(results), measured * std::ssize(options.lengths));
      }
      keep(bench_mechanism(*mechanism, options, *form, length));
    }
  }
  if constexpr (kCuda) {
    if (options.cudnn) {
      for (const int64_t length : options.lengths)
        keep(cuda::bench_cudnn_softmax(options, options.form, length));
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

}  // namespace linnet
