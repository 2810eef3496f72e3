// linnet bench attention.
#include "recipes/engine/bench/attention.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <optional>

#include "core/kernel_choice.h"
#include "recipes/engine/bench/growth.h"
#include "tools/cli/bench/operation.h"

namespace linnet::cli {
namespace {

JsonValue growth_json(const AttentionGrowth& growth) {
  return JsonValue::object()
      .set("mechanism", growth.mechanism)
      .set("form", std::string(name_of(growth.form)))
      .set("forward", growth.forward)
      .set("forward_backward", growth.forward_backward)
      .set("memory", growth.memory)
      .set("declared", growth.declared);
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

int bench_attention_command(const AttentionBenchOptions& options, const OperationWords& words,
                            const std::optional<double>& max_growth, bool json) {
  require_usage(!(options.all || options.linear) || options.mechanisms.empty(),
                Cause{ErrorCode::conflict, options.linear ? "--linear" : "--all"},
                options.linear ? "--linear measures those that declare linear work"
                               : "--all measures every mechanism",
                "; name none beside it");
  require_usage(!max_growth || (std::isfinite(*max_growth) && *max_growth > 0),
                Cause{ErrorCode::out_of_range, "--max-growth"},
                "--max-growth must be a power above 0, e.g. 1.1, got ", max_growth.value_or(0));
  require_usage(!max_growth || options.lengths.size() > 1,
                Cause{ErrorCode::conflict, "--max-growth"},
                "--max-growth needs two lengths or more, e.g. --lengths 2048,32768");
  require_usage(!max_growth || declares_linear_work(options),
                Cause{ErrorCode::conflict, "--max-growth"},
                "--max-growth: none of these mechanisms declares linear work in this form");
  WorkProgress progress;
  AttentionBenchOptions shown = options;
  shown.before_point = shown_by(progress);
  const std::vector<OperationBench> results =
      bench_attention(shown, printed_at_once(options, words, json, progress));
  progress.erase();
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

}  // namespace

void add_bench_attention(CLI::App& bench, Command& chosen) {
  struct Arguments {
    AttentionBenchOptions options;
    OperationWords words;
    std::string form = "causal";
    std::optional<double> max_growth;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  AttentionBenchOptions& options = arguments->options;
  CLI::App* command = bench.add_subcommand("attention", "mechanisms alone, without projections");
  command->add_option("MECHANISM", options.mechanisms,
                      "which ones (default: all that have the form)");
  command->add_flag("--all", options.all,
                    "all; those that lack the form in the other of causal and noncausal");
  command->add_flag("--linear", options.linear,
                    "those that declare linear work, in the form or else in the other");
  command->add_flag("--cold", options.cold,
                    "on a CPU: empty the caches before each run, as the inputs of long sequences "
                    "find them anyway");
  command->add_flag("--cudnn", options.cudnn,
                    "also softmax attention by cuDNN, after comparing it with linnet's: for a "
                    "CUDA device and bf16");
  command->add_option("--form", arguments->form, "causal or noncausal")->capture_default_str();
  add_operation_options(*command, options, arguments->words,
                        "e.g. 512,1024,4096; with two or more, growth is printed too");
  command
      ->add_option("--set", options.parameters,
                   "a parameter of the one mechanism, e.g. slots=64; may be given several times")
      ->allow_extra_args(false);
  command->add_option(
      "--max-growth", arguments->max_growth,
      "fail when a mechanism that declares linear work takes time that grows with "
      "a larger power of the length, e.g. 1.1 (work of T ln T: by 0.1 more than that)");
  command->footer(
      "Growth is that of the least times: of one CPU thread, of those for which it computed, "
      "which\n"
      "other programs change little; of several threads and of a GPU, of those by the clock.\n"
      "Whether linear mechanisms are linear:\n"
      "  linnet bench attention --linear --device cpu --threads 1 --runs 7 --cold \\\n"
      "    --lengths 2048,4096,8192,16384,32768 --max-growth 1.1");
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  add_plugin_option(*command);
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      AttentionBenchOptions& options = arguments->options;
      options.device = use_device(arguments->words.device);
      options.form = form_from_name(arguments->form);
      options.dtype = operation_dtype(arguments->words.dtype);
      const UseKernels kernels(kernel_choice_from_name(arguments->words.backend), options.device);
      return bench_attention_command(options, arguments->words, arguments->max_growth,
                                     arguments->json);
    };
  });
}

}  // namespace linnet::cli
