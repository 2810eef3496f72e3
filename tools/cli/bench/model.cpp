// linnet bench model.
#include "recipes/engine/bench/model.h"
#include "recipes/engine/model_bench.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <optional>
#include <utility>

#include "core/files.h"
#include "core/free_memory.h"
#include "core/threads.h"
#include "core/version.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/processor.h"
#include "tools/cli/bench/bench.h"

namespace linnet::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kMemoryOfCpu = 4;  // GiB, without --memory

struct Arguments {
  std::string recipe, point, mode = "train", device = "auto", json;
  std::vector<std::string> overrides;
  std::optional<double> memory_gib;
  ModelBenchOptions options;
};

ModelBenchLine line_of(const ModelBench& bench, const Arguments& arguments) {
  const ModelBenchOptions& options = arguments.options;
  ModelBenchLine line;
  line.bench = bench;
  line.mode = options.mode;
  line.overrides = arguments.overrides;
  line.batch_given = options.batch;
  if (options.cpu_memory_bytes) line.memory_bytes = static_cast<int64_t>(*options.cpu_memory_bytes);
  line.vocabulary = options.vocabulary;
  line.device = name_of(options.device);
  const bool cpu = options.device.kind == DeviceKind::cpu;
  line.device_name =
      cpu ? processor().at("cpu").text() : device_interface(options.device).description();
  line.threads = thread_count();
  line.date = utc_now();
  line.commit = git_hash();
  return line;
}

void print_heading(const Arguments& arguments) {
  const ModelBenchOptions& options = arguments.options;
  const bool cpu = options.device.kind == DeviceKind::cpu;
  std::cout << name_of(options.device) << ", "
            << (cpu ? concat(thread_count(), thread_count() == 1 ? " thread" : " threads")
                    : device_interface(options.device).description())
            << ", " << (options.mode == BenchMode::train ? "updates" : "forward passes")
            << " on random tokens of " << options.vocabulary << " words";
  if (options.cpu_memory_bytes) {
    std::cout << ", at most " << memory_text(static_cast<double>(*options.cpu_memory_bytes));
  }
  std::cout << "\n"
            << std::left << std::setw(28) << "point" << std::right << std::setw(8) << "length"
            << std::setw(8) << "batch" << std::setw(20) << "batches per second" << std::setw(12)
            << "ms each" << std::setw(12) << "peak MiB"
            << "\n";
}

void print_result(const ModelBench& bench) {
  std::cout << std::left << std::setw(28) << (bench.point.empty() ? "recipe" : bench.point)
            << std::right << std::setw(8) << bench.length;
  if (!bench.fits()) {
    std::cout << "  out of memory" << std::endl;
    return;
  }
  std::cout << std::setw(8) << bench.batch << std::fixed << std::setprecision(3) << std::setw(20)
            << bench.rate() << std::setprecision(2) << std::setw(12) << 1e3 * bench.seconds
            << std::setw(12) << static_cast<double>(bench.peak_bytes) / kMiB << std::endl;
}

int bench_model_command(Arguments& arguments) {
  ModelBenchOptions& options = arguments.options;
  options.device = use_device(arguments.device);
  options.mode = arguments.mode == "train" ? BenchMode::train : BenchMode::inference;
  const bool cpu = options.device.kind == DeviceKind::cpu;
  require_usage(cpu || !arguments.memory_gib, Cause{ErrorCode::conflict, "--memory"},
                "--memory is a limit for a CPU; on ", name_of(options.device),
                " all of its memory is used: leave it out");
  if (cpu) {
    options.cpu_memory_bytes =
        static_cast<size_t>(arguments.memory_gib.value_or(kMemoryOfCpu) * kGiB);
  }
  const std::vector<RecipePoint> points =
      arguments.point.empty()
          ? load_recipe_points(arguments.recipe, arguments.overrides)
          : std::vector{load_recipe_point(arguments.recipe, arguments.overrides, arguments.point)};
  std::optional<File> file;
  if (!arguments.json.empty()) file.emplace(arguments.json, OpenMode::append);
  WorkProgress progress;
  bool headed = false;
  bench_model(points, options, shown_by(progress), [&](const ModelBench& bench) {
    progress.erase();
    if (!std::exchange(headed, true)) print_heading(arguments);
    print_result(bench);
    if (file) file->write(to_json(line_of(bench, arguments)).dump() + "\n");
  });
  if (file) file->sync();
  return 0;
}

}  // namespace

void add_bench_model(CLI::App& bench, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  ModelBenchOptions& options = arguments->options;
  CLI::App* command =
      bench.add_subcommand("model", "whole models of a recipe and its sweep, by length");
  command->add_option("RECIPE", arguments->recipe, "a YAML file; its data are not read")
      ->required();
  command->add_option("OVERRIDES", arguments->overrides, "key.path=value ...");
  command
      ->add_option("--mode", arguments->mode,
                   "train: whole updates; inference: forward passes of the trunk, without a head")
      ->capture_default_str()
      ->check(CLI::IsMember({"train", "inference"}));
  command->add_option("--lengths", options.lengths, "tokens of a row, e.g. 1024,2048,4096")
      ->delimiter(',')
      ->required()
      ->check(between(1, kMaxTokensAtOnce));
  command->add_option("--point", arguments->point, "one point of the sweep (default: all)");
  command
      ->add_option("--batch", options.batch,
                   "rows at once (default: doubled until memory ends, of which half is used)")
      ->check(between(1, kMaxTokensAtOnce));
  command
      ->add_option("--memory", arguments->memory_gib,
                   concat("GiB that tensors on a CPU may hold (default: ", kMemoryOfCpu, ")"))
      ->check(CLI::Range(1e-3, 1e6));
  command->add_option("--vocabulary", options.vocabulary, "of the random tokens")
      ->capture_default_str()
      ->check(between(2, 1 << 30));
  command
      ->add_option("--runs", options.runs,
                   "timed at most, of which the median is taken; fewer where they take seconds")
      ->capture_default_str()
      ->check(between(1, kMaxRuns));
  command->add_option("--json", arguments->json,
                      "append a line for each point and length to this file "
                      "(recipes/engine/README.md)");
  command->footer(
      "Peak memory is what tensors hold, with weights; in training with gradients and optimizer "
      "state.");
  add_device_option(*command, arguments->device);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return bench_model_command(*arguments); }; });
}

}  // namespace linnet::cli
