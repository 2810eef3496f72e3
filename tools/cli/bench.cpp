// linnet bench train | attention | conv.
#include "recipes/engine/bench.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <optional>

#include "core/gemm.h"
#include "core/kernel_choice.h"
#include "core/threads.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

int bench_train_command(const std::string& path, const std::vector<std::string>& overrides,
                        int64_t steps, Device device, bool json) {
  const ConfigNode node = load_recipe_node(path, overrides);
  const std::vector<TrainBench> results = bench_train(node, steps, device);
  const bool bf16 = parse_recipe(node).train.precision == Precision::bf16;
  const double peak = measure_gemm_peak(bf16 ? DType::bf16 : DType::f32, device);
  JsonValue points = JsonValue::array();
  if (!json) {
    const std::string where =
        device.kind == DeviceKind::cpu
            ? concat(gemm_backend(), ", ", thread_count(), " threads")
            : concat(name_of(device), ", ", device_interface(device).description());
    std::cout << where << ", products at best " << std::fixed << std::setprecision(0) << peak
              << " GFLOP/s\n"
              << std::left << std::setw(28) << "point" << std::right << std::setw(12) << "tokens/s"
              << std::setw(12) << "s/step" << std::setw(12) << "GFLOP/s" << std::setw(10)
              << "of peak" << std::setw(12) << "peak MiB" << std::setw(13) << "working MiB"
              << "\n";
  }
  for (const TrainBench& point : results) {
    points.push(JsonValue::object()
                    .set("point", point.label)
                    .set("parameters", point.parameters)
                    .set("tokens_per_s", point.tokens_per_s())
                    .set("step_seconds", point.step_seconds)
                    .set("product_gflop_per_s", point.gflop_per_s())
                    .set("share_of_peak", point.gflop_per_s() / peak)
                    .set("peak_bytes", point.peak_bytes)
                    .set("working_bytes", point.working_bytes));
    if (json) continue;
    std::cout << std::left << std::setw(28) << (point.label.empty() ? "recipe" : point.label)
              << std::right << std::setw(12) << std::setprecision(0) << point.tokens_per_s()
              << std::setw(12) << std::setprecision(3) << point.step_seconds << std::setw(12)
              << std::setprecision(1) << point.gflop_per_s() << std::setw(9) << std::setprecision(0)
              << 100 * point.gflop_per_s() / peak << "%" << std::setw(12)
              << static_cast<double>(point.peak_bytes) / kMiB << std::setw(13)
              << static_cast<double>(point.working_bytes) / kMiB << "\n";
  }
  if (json) {
    std::cout << JsonValue::object()
                     .set("device", name_of(device))
                     .set("threads", thread_count())
                     .set("products", gemm_backend())
                     .set("product_peak_gflop_per_s", peak)
                     .set("points", points)
                     .dump()
              << "\n";
  } else {
    std::cout << "GFLOP/s counts matrix products only; attention's own arithmetic is not in it.\n"
                 "Working memory: the peak besides weights and optimizer state.\n";
  }
  return 0;
}

// What the command line says of single operations, in words.
struct Words {
  std::string form = "causal", dtype = "f32", backend = "auto", device = "auto";
};

JsonValue point_json(const AttentionBench& point) {
  return JsonValue::object()
      .set("mechanism", point.mechanism)
      .set("form", std::string(name_of(point.form)))
      .set("batch", point.batch)
      .set("length", point.length)
      .set("heads", point.heads)
      .set("head_width", point.width)
      .set("forward_ms", point.forward.median)
      .set("least_forward_ms", point.forward.least)
      .set("multiply_adds", point.multiply_adds)
      .set("forward_gflop_per_s", point.forward_gflop_per_s())
      .set("forward_backward_ms", point.forward_backward.median)
      .set("least_forward_backward_ms", point.forward_backward.least)
      .set("peak_bytes", point.peak_bytes);
}

JsonValue growth_json(const AttentionGrowth& growth) {
  return JsonValue::object()
      .set("mechanism", growth.mechanism)
      .set("form", std::string(name_of(growth.form)))
      .set("forward", growth.forward)
      .set("forward_backward", growth.forward_backward)
      .set("memory", growth.memory)
      .set("declared", growth.declared);
}

// What all points have in common, and the table's heading.
void print_heading(const AttentionBenchOptions& options, const Words& words) {
  const bool cpu = options.device.kind == DeviceKind::cpu;
  std::cout << name_of(options.device) << ", "
            << (cpu ? concat(thread_count(), thread_count() == 1 ? " thread" : " threads")
                    : device_interface(options.device).description())
            << ", " << words.dtype << ", backend " << words.backend << ", batch " << options.batch
            << ", " << options.heads << (options.heads == 1 ? " head" : " heads") << " of width "
            << options.head_width << (options.cold ? ", empty caches before each run" : "") << "\n"
            << std::left << std::setw(18) << "mechanism" << std::setw(11) << "form" << std::right
            << std::setw(8) << "length" << std::setw(14) << "forward ms" << std::setw(10)
            << "GFLOP/s" << std::setw(14) << "fwd+bwd ms" << std::setw(12) << "peak MiB"
            << "\n";
}

void print_point(const AttentionBench& point) {
  std::cout << std::left << std::setw(18) << point.mechanism << std::setw(11) << name_of(point.form)
            << std::right << std::setw(8) << point.length << std::fixed << std::setprecision(2)
            << std::setw(14) << point.forward.median << std::setprecision(1) << std::setw(10)
            << point.forward_gflop_per_s() << std::setprecision(2) << std::setw(14)
            << point.forward_backward.median << std::setw(12)
            << static_cast<double>(point.peak_bytes) / kMiB << std::endl;
}

void print_growth(const std::vector<AttentionGrowth>& growth) {
  if (growth.empty()) return;
  std::cout << "\n"
            << std::left << std::setw(29) << "grows as T to the" << std::right << std::setw(10)
            << "forward" << std::setw(10) << "fwd+bwd" << std::setw(10) << "memory" << std::setw(14)
            << "declared work"
            << "\n";
  for (const AttentionGrowth& each : growth) {
    std::cout << std::left << std::setw(18) << each.mechanism << std::setw(11) << name_of(each.form)
              << std::right << std::setprecision(2) << std::setw(10) << each.forward
              << std::setw(10) << each.forward_backward << std::setw(10) << each.memory
              << std::setw(14) << each.declared << "\n";
  }
}

// Prints points as they are measured, unless `json`.
std::function<void(const AttentionBench&)> printed_at_once(const AttentionBenchOptions& options,
                                                           const Words& words, bool json) {
  if (json) return {};
  return [&, headed = false](const AttentionBench& point) mutable {
    if (!headed) print_heading(options, words);
    headed = true;
    print_point(point);
  };
}

JsonValue report_json(const AttentionBenchOptions& options, const Words& words,
                      const std::vector<AttentionBench>& results) {
  JsonValue points = JsonValue::array();
  for (const AttentionBench& point : results) points.push(point_json(point));
  return JsonValue::object()
      .set("device", name_of(options.device))
      .set("threads", thread_count())
      .set("dtype", words.dtype)
      .set("backend", words.backend)
      .set("cold", options.cold)
      .set("points", points);
}

int bench_conv_command(const AttentionBenchOptions& options, const Words& words,
                       const std::vector<int64_t>& taps, bool json) {
  const std::vector<AttentionBench> results =
      bench_convolutions(taps, options, printed_at_once(options, words, json));
  if (json) std::cout << report_json(options, words, results).dump() << "\n";
  return 0;
}

int bench_attention_command(const AttentionBenchOptions& options, const Words& words,
                            const std::optional<double>& max_growth, bool json) {
  require_usage(!(options.all || options.linear) || options.mechanisms.empty(),
                options.linear ? "--linear measures those that declare linear work"
                               : "--all measures every mechanism",
                "; name none beside it");
  require_usage(!max_growth || (std::isfinite(*max_growth) && *max_growth > 0),
                "--max-growth must be a power above 0, e.g. 1.1, got ", max_growth.value_or(0));
  require_usage(!max_growth || options.lengths.size() > 1,
                "--max-growth needs two lengths or more, e.g. --lengths 2048,32768");
  require_usage(!max_growth || declares_linear_work(options),
                "--max-growth: none of these mechanisms declares linear work in this form");
  const std::vector<AttentionBench> results =
      bench_attention(options, printed_at_once(options, words, json));
  const std::vector<AttentionGrowth> growth = attention_growth(results);
  if (json) {
    JsonValue grows = JsonValue::array();
    for (const AttentionGrowth& each : growth) grows.push(growth_json(each));
    std::cout << report_json(options, words, results).set("growth", grows).dump() << "\n";
  } else {
    std::cout << "GFLOP/s: the forward pass's products as its equation counts them.\n";
    print_growth(growth);
  }
  if (max_growth) require_growth(growth, *max_growth);
  return 0;
}

// The options that mechanisms and convolutions have in common.
void add_operation_options(CLI::App& command, AttentionBenchOptions& options, Words& words,
                           const char* lengths) {
  command.add_option("--lengths", options.lengths, lengths)->delimiter(',')->capture_default_str();
  command.add_option("--batch", options.batch, "sequences")->capture_default_str();
  command.add_option("--heads", options.heads, "heads")->capture_default_str();
  command.add_option("--head-width", options.head_width, "channels of a head")
      ->capture_default_str();
  command
      .add_option("--runs", options.runs,
                  "timed runs at most, of which the median is printed; fewer where they take "
                  "seconds")
      ->capture_default_str()
      ->check(at_least(1));
  command.add_option("--dtype", words.dtype, "f32 or bf16, of activations and parameters")
      ->capture_default_str();
  add_backend_option(command, words.backend);
  add_device_option(command, words.device);
  add_threads_option(command);
}

// Takes them at their word.
void read(const Words& words, AttentionBenchOptions& options) {
  options.device = use_device(words.device);
  options.form = form_from_name(words.form);
  require_usage(words.dtype == "f32" || words.dtype == "bf16",
                "bench: --dtype is f32 or bf16, got ", words.dtype);
  options.dtype = dtype_from_name(words.dtype);
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("bench", "time training steps, attention mechanisms or convolutions");
  command->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  auto device = std::make_shared<std::string>("auto");

  CLI::App* train = command->add_subcommand("train", "whole updates of a recipe and its sweep");
  auto path = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  auto steps = std::make_shared<int64_t>(5);
  train->add_option("RECIPE", *path, "a YAML file")->required();
  train->add_option("OVERRIDES", *overrides, "key.path=value ...");
  train->add_option("--steps", *steps, "timed updates")->capture_default_str()->check(at_least(1));
  train->add_flag("--json", *json, "one JSON object on stdout");
  add_device_option(*train, *device);
  add_plugin_option(*train);
  add_threads_option(*train);
  train->callback([=, &chosen] {
    chosen = [=] {
      return bench_train_command(*path, *overrides, *steps, use_device(*device), *json);
    };
  });

  CLI::App* attention =
      command->add_subcommand("attention", "mechanisms alone, without projections");
  auto options = std::make_shared<AttentionBenchOptions>();
  auto words = std::make_shared<Words>();
  attention->add_option("MECHANISM", options->mechanisms,
                        "which ones (default: all that have the form)");
  attention->add_flag("--all", options->all,
                      "all; those that lack the form in the other of causal and noncausal");
  attention->add_flag("--linear", options->linear,
                      "those that declare linear work, in the form or else in the other");
  attention->add_flag("--cold", options->cold,
                      "on a CPU: empty the caches before each run, as the inputs of long sequences "
                      "find them anyway");
  attention->add_flag("--cudnn", options->cudnn,
                      "also softmax attention by cuDNN, after comparing it with linnet's: for a "
                      "CUDA device and bf16");
  attention->add_option("--form", words->form, "causal or noncausal")->capture_default_str();
  add_operation_options(*attention, *options, *words,
                        "e.g. 512,1024,4096; with two or more, growth is printed too");
  attention
      ->add_option("--set", options->parameters,
                   "a parameter of the one mechanism, e.g. slots=64; may be given several times")
      ->allow_extra_args(false);
  auto max_growth = std::make_shared<std::optional<double>>();
  attention->add_option(
      "--max-growth", *max_growth,
      "fail when a mechanism that declares linear work takes time that grows with "
      "a larger power of the length, e.g. 1.1 (work of T ln T: by 0.1 more than that)");
  attention->footer(
      "Growth is that of the least times: of one CPU thread, of those for which it computed, "
      "which\n"
      "other programs change little; of several threads and of a GPU, of those by the clock.\n"
      "Whether linear mechanisms are linear:\n"
      "  linnet bench attention --linear --device cpu --threads 1 --runs 7 --cold \\\n"
      "    --lengths 2048,4096,8192,16384,32768 --max-growth 1.1");
  attention->add_flag("--json", *json, "one JSON object on stdout");
  add_plugin_option(*attention);
  attention->callback([=, &chosen] {
    chosen = [=] {
      read(*words, *options);
      const UseKernels kernels(kernel_choice_from_name(words->backend), options->device);
      return bench_attention_command(*options, *words, *max_growth, *json);
    };
  });

  CLI::App* conv = command->add_subcommand("conv", "causal depthwise convolutions alone");
  auto taps = std::make_shared<std::vector<int64_t>>(std::vector<int64_t>{63, 4});
  conv->add_option("--taps", *taps, "of the filter that each head has, e.g. 63,4")
      ->delimiter(',')
      ->capture_default_str();
  add_operation_options(*conv, *options, *words, "e.g. 512,1024,4096");
  conv->add_flag("--json", *json, "one JSON object on stdout");
  conv->callback([=, &chosen] {
    chosen = [=] {
      read(*words, *options);
      const UseKernels kernels(kernel_choice_from_name(words->backend), options->device);
      return bench_conv_command(*options, *words, *taps, *json);
    };
  });
}

}  // namespace linnet::cli
