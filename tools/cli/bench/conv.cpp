// linnet bench conv.
#include "recipes/engine/bench/conv.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "core/kernel_choice.h"
#include "tools/cli/bench/operation.h"

namespace linnet::cli {
namespace {

int bench_conv_command(const OperationOptions& options, const OperationWords& words,
                       const std::vector<int64_t>& taps, bool json) {
  WorkProgress progress;
  OperationOptions shown = options;
  shown.before_point = shown_by(progress);
  const std::vector<OperationBench> results =
      bench_convolutions(taps, shown, printed_at_once(options, words, json, progress));
  progress.erase();
  if (json) std::cout << report_json(options, words, results).dump() << "\n";
  return 0;
}

}  // namespace

void add_bench_conv(CLI::App& bench, Command& chosen) {
  struct Arguments {
    OperationOptions options;
    OperationWords words;
    std::vector<int64_t> taps{63, 4};
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand("conv", "causal depthwise convolutions alone");
  command->add_option("--taps", arguments->taps, "of the filter that each head has, e.g. 63,4")
      ->delimiter(',')
      ->capture_default_str();
  add_operation_options(*command, arguments->options, arguments->words, "e.g. 512,1024,4096");
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      OperationOptions& options = arguments->options;
      options.device = use_device(arguments->words.device);
      options.dtype = operation_dtype(arguments->words.dtype);
      const UseKernels kernels(kernel_choice_from_name(arguments->words.backend), options.device);
      return bench_conv_command(options, arguments->words, arguments->taps, arguments->json);
    };
  });
}

}  // namespace linnet::cli
