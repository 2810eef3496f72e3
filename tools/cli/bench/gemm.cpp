// linnet bench gemm.
#include "recipes/engine/bench/gemm.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <optional>
#include <utility>

#include "core/gemm.h"
#include "core/row_products.h"
#include "core/threads.h"
#include "tools/cli/bench/operation.h"

namespace linnet::cli {
namespace {

// From one row and small matrices on, around the size from which threads share a product.
const std::vector<std::string> kSizes = {
    "1x192x192",   "1x768x768",   "1x2048x1024", "1x4096x1024",  "1x50257x768",
    "8x768x768",   "64x64x64",    "64x192x192",  "128x128x128",  "128x192x192",
    "256x128x128", "256x192x192", "512x256x256", "1024x192x768", "2048x768x768"};

struct Arguments {
  std::vector<std::string> sizes;
  std::string dtype = "f32";
  std::optional<double> max_ratio;
  bool json = false;
  GemmBenchOptions options;
};

JsonValue result_json(const GemmBench& result) {
  return JsonValue::object()
      .set("size", result.size.name())
      .set("threads", result.threads)
      .set("least_one_thread_ms", result.one_thread_ms)
      .set("least_ms", result.ms)
      .set("gflop_per_s", result.gflop_per_s())
      .set("ratio", result.ratio());
}

void print_heading(const Arguments& arguments) {
  std::cout << gemm_backend() << ", " << arguments.dtype << ", " << thread_count()
            << (thread_count() == 1 ? " thread" : " threads")
            << (arguments.options.step ? ", as in a step of generation" : "") << "\n"
            << std::left << std::setw(18) << "size" << std::right << std::setw(8) << "threads"
            << std::setw(15) << "1 thread, ms" << std::setw(10) << "ms" << std::setw(10)
            << "GFLOP/s" << std::setw(8) << "ratio" << std::endl;
}

void print_result(const GemmBench& result) {
  std::cout << std::left << std::setw(18) << result.size.name() << std::right << std::setw(8)
            << result.threads << std::fixed << std::setprecision(4) << std::setw(15)
            << result.one_thread_ms << std::setw(10) << result.ms << std::setprecision(1)
            << std::setw(10) << result.gflop_per_s() << std::setprecision(2) << std::setw(8)
            << result.ratio() << std::endl;
}

int bench_gemm_command(Arguments& arguments) {
  arguments.options.dtype = operation_dtype(arguments.dtype);
  const bool all = arguments.sizes.empty();
  for (const std::string& name : all ? kSizes : arguments.sizes) {
    const GemmSize size = gemm_size_from_name(name);
    const bool fits = !arguments.options.step || size.rows <= kMaxProductRows;
    if (!all || fits) arguments.options.sizes.push_back(size);
  }
  bool headed = arguments.json;
  JsonValue points = JsonValue::array();
  std::string slower;
  bench_gemm(arguments.options, [&](const GemmBench& result) {
    if (!std::exchange(headed, true)) print_heading(arguments);
    points.push(result_json(result));
    if (!arguments.json) print_result(result);
    if (arguments.max_ratio && result.ratio() > *arguments.max_ratio) {
      slower += (slower.empty() ? "" : ", ") + result.size.name();
    }
  });
  if (arguments.json) {
    std::cout << JsonValue::object()
                     .set("backend", gemm_backend())
                     .set("threads", thread_count())
                     .set("dtype", arguments.dtype)
                     .set("step", arguments.options.step)
                     .set("points", points)
                     .dump()
              << "\n";
  }
  require(slower.empty(), "more than ", arguments.max_ratio.value_or(0),
          " times as long as with one thread: ", slower);
  return 0;
}

}  // namespace

void add_bench_gemm(CLI::App& bench, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand(
      "gemm", "matrix products on the CPU, with one thread and with those that linnet takes");
  command
      ->add_option("--sizes", arguments->sizes,
                   "products to time, ROWSxCOLUMNSxDEPTH: an input [rows, depth] of a linear layer "
                   "from depth to columns (default: a choice of small and large ones)")
      ->delimiter(',');
  command->add_flag("--step", arguments->options.step,
                    "as in a step of generation, whose products read the matrix row by row");
  command
      ->add_option("--runs", arguments->options.runs,
                   "runs at most of each, in turns, of which the least is printed")
      ->capture_default_str()
      ->check(between(1, kMaxRuns));
  command
      ->add_option("--max-ratio", arguments->max_ratio,
                   "exit with 1 where a product takes more than so many times as long as with one "
                   "thread, e.g. 1.05")
      ->check(CLI::Range(1e-3, 1e6));
  command->add_option("--dtype", arguments->dtype, "f32 or bf16")->capture_default_str();
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_threads_option(*command);
  command->footer(
      "A product takes one thread where waking others costs more than they save, and all that "
      "--threads allows where it does not; the ratio is of both times. Other work of the machine "
      "disturbs it.");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return bench_gemm_command(*arguments); }; });
}

}  // namespace linnet::cli
