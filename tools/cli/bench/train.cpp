// linnet bench train.
#include "recipes/engine/bench/train.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "core/gemm.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/threads.h"
#include "recipes/engine/bench/slow_network.h"
#include "recipes/engine/recipe.h"
#include "tools/cli/bench/bench.h"
#include "tools/cli/launch.h"

namespace linnet::cli {
namespace {

// The command that was given, in several processes, which share its threads.
int launch_again(const CLI::App& command, int64_t procs) {
  LaunchOptions options;
  options.procs = static_cast<int>(procs);
  options.command = {"bench", "train"};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (name == "--procs" || name == "--threads") continue;
    for (const std::string& value : option->results()) {
      if (!option->get_positional()) options.command.push_back(name);
      if (option->get_expected_max() > 0) options.command.push_back(value);
    }
  }
  return launch(options);
}

int bench_train_command(const std::string& path, const std::vector<std::string>& overrides,
                        int64_t steps, Device device, int64_t network_delay_ms, bool json) {
  const std::unique_ptr<Communicator> ranks = join_ranks(device);
  require_usage(network_delay_ms == 0 || (ranks->size() > 1 && device == Device{}),
                Cause{ErrorCode::conflict, "--network-delay"},
                "--network-delay is for several processes on CPUs: add --procs 2 --device cpu, or "
                "leave it out");
  SlowNetwork network(*ranks, std::chrono::milliseconds(network_delay_ms));
  Job job(network);
  const std::vector<RecipePoint> recipes = load_recipe_points(path, overrides);
  WorkProgress progress;
  const std::vector<TrainBench> results =
      bench_train(recipes, steps, device, job.leads() ? shown_by(progress) : OnPart(), job);
  progress.erase();
  if (!job.leads()) return 0;
  const bool bf16 = parse_recipe(recipes.front().node).train.precision == Precision::bf16;
  const double peak = measure_gemm_peak(bf16 ? DType::bf16 : DType::f32, device);
  JsonValue points = JsonValue::array();
  if (!json) {
    const std::string where =
        device.kind == DeviceKind::cpu
            ? concat(gemm_backend(), ", ", thread_count(), " threads",
                     job.is_alone() ? "" : concat(" in each of ", job.size(), " processes"))
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
                     .set("processes", int64_t{job.size()})
                     .set("products", gemm_backend())
                     .set("product_peak_gflop_per_s", peak)
                     .set("points", points)
                     .dump()
              << "\n";
  } else {
    std::cout << "GFLOP/s counts matrix products only; attention's own arithmetic is not in it.\n"
                 "Working memory: the peak besides weights and optimizer state.\n";
    if (!job.is_alone()) {
      std::cout << "Tokens are those of all processes, GFLOP/s and memory those of the first.\n";
    }
  }
  return 0;
}

}  // namespace

void add_bench_train(CLI::App& bench, Command& chosen) {
  struct Arguments {
    std::string recipe, device = "auto";
    std::vector<std::string> overrides;
    int64_t steps = 5, procs = 1, network_delay_ms = 0;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand("train", "whole updates of a recipe and its sweep");
  command->add_option("RECIPE", arguments->recipe, "a YAML file")->required();
  command->add_option("OVERRIDES", arguments->overrides, "key.path=value ...");
  command->add_option("--steps", arguments->steps, "timed updates")
      ->capture_default_str()
      ->check(between(1, kMaxRuns));
  command
      ->add_option("--procs", arguments->procs,
                   "processes of this machine that make each update together, as under 'linnet "
                   "launch'")
      ->capture_default_str()
      ->check(between(1, kMaxProcesses));
  command
      ->add_option("--network-delay", arguments->network_delay_ms,
                   "ms that each sum of gradients over several processes takes longer, as on a "
                   "slower network")
      ->capture_default_str()
      ->check(between(0, 60'000));
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_device_option(*command, arguments->device);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, command, &chosen] {
    chosen = [arguments, command] {
      if (arguments->procs > 1) return launch_again(*command, arguments->procs);
      return bench_train_command(arguments->recipe, arguments->overrides, arguments->steps,
                                 use_device(arguments->device), arguments->network_delay_ms,
                                 arguments->json);
    };
  });
}

}  // namespace linnet::cli
