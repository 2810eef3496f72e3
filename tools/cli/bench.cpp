// linnet bench train | attention.
#include "recipes/engine/bench.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "core/gemm.h"
#include "core/threads.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

int bench_train_command(const std::string& path, const std::vector<std::string>& overrides,
                        int64_t steps, Device device, bool json) {
  const double peak = measure_gemm_peak(device);
  const std::vector<TrainBench> results =
      bench_train(load_recipe_node(path, overrides), steps, device);
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
              << "of peak" << std::setw(12) << "peak MiB"
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
                    .set("peak_bytes", point.peak_bytes));
    if (json) continue;
    std::cout << std::left << std::setw(28) << (point.label.empty() ? "recipe" : point.label)
              << std::right << std::setw(12) << std::setprecision(0) << point.tokens_per_s()
              << std::setw(12) << std::setprecision(3) << point.step_seconds << std::setw(12)
              << std::setprecision(1) << point.gflop_per_s() << std::setw(9) << std::setprecision(0)
              << 100 * point.gflop_per_s() / peak << "%" << std::setw(12)
              << static_cast<double>(point.peak_bytes) / kMiB << "\n";
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
    std::cout << "GFLOP/s counts matrix products only; attention's own arithmetic is not in it.\n";
  }
  return 0;
}

int bench_attention_command(const AttentionBenchOptions& options, bool json) {
  const std::vector<AttentionBench> results = bench_attention(options);
  JsonValue points = JsonValue::array();
  if (!json) {
    std::cout << std::left << std::setw(14) << "mechanism" << std::right << std::setw(8) << "length"
              << std::setw(14) << "forward ms" << std::setw(10) << "GFLOP/s" << std::setw(20)
              << "fwd+bwd ms" << std::setw(12) << "peak MiB"
              << "\n";
  }
  for (const AttentionBench& point : results) {
    points.push(JsonValue::object()
                    .set("mechanism", point.mechanism)
                    .set("form", std::string(name_of(point.form)))
                    .set("batch", point.batch)
                    .set("length", point.length)
                    .set("heads", point.heads)
                    .set("head_width", point.width)
                    .set("forward_ms", point.forward_ms)
                    .set("multiply_adds", point.multiply_adds)
                    .set("forward_gflop_per_s", point.forward_gflop_per_s())
                    .set("forward_backward_ms", point.forward_backward_ms)
                    .set("peak_bytes", point.peak_bytes));
    if (json) continue;
    std::cout << std::left << std::setw(14) << point.mechanism << std::right << std::setw(8)
              << point.length << std::fixed << std::setprecision(2) << std::setw(14)
              << point.forward_ms << std::setprecision(1) << std::setw(10)
              << point.forward_gflop_per_s() << std::setprecision(2) << std::setw(20)
              << point.forward_backward_ms << std::setw(12)
              << static_cast<double>(point.peak_bytes) / kMiB << "\n";
  }
  if (json) {
    std::cout << JsonValue::object()
                     .set("device", name_of(options.device))
                     .set("threads", thread_count())
                     .set("points", points)
                     .dump()
              << "\n";
  } else {
    std::cout << "GFLOP/s: the forward pass's products as its equation counts them.\n";
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("bench", "time training steps or attention mechanisms");
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
  auto form = std::make_shared<std::string>("causal");
  attention->add_option("MECHANISM", options->mechanisms, "which ones (default: all)");
  attention->add_option("--form", *form, "causal or noncausal")->capture_default_str();
  attention->add_option("--lengths", options->lengths, "e.g. 512,1024,4096")->delimiter(',');
  attention->add_option("--batch", options->batch, "sequences")->capture_default_str();
  attention->add_option("--heads", options->heads, "heads")->capture_default_str();
  attention->add_option("--head-width", options->head_width, "channels of a head")
      ->capture_default_str();
  attention->add_option("--runs", options->runs, "timed runs; the median counts")
      ->capture_default_str()
      ->check(at_least(1));
  add_device_option(*attention, *device);
  attention->add_flag("--json", *json, "one JSON object on stdout");
  add_plugin_option(*attention);
  add_threads_option(*attention);
  attention->callback([=, &chosen] {
    chosen = [=] {
      options->device = use_device(*device);
      options->form = form_from_name(*form);
      return bench_attention_command(*options, *json);
    };
  });
}

}  // namespace linnet::cli
