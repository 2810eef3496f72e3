// linnet bench loss.
#include "recipes/engine/bench/loss.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "core/threads.h"
#include "tools/cli/bench/operation.h"

namespace linnet::cli {
namespace {

int bench_loss_command(const LossBenchOptions& options, const OperationWords& words, bool json) {
  const LossBench bench = bench_losses(options);
  const double ratio = bench.table.median / bench.adaptive.median;
  if (json) {
    std::cout << JsonValue::object()
                     .set("device", name_of(options.device))
                     .set("threads", thread_count())
                     .set("dtype", words.dtype)
                     .set("words", options.words)
                     .set("width", options.width)
                     .set("tokens", options.tokens)
                     .set("table_ms", bench.table.median)
                     .set("least_table_ms", bench.table.least)
                     .set("table_peak_bytes", bench.table_peak)
                     .set("adaptive_ms", bench.adaptive.median)
                     .set("least_adaptive_ms", bench.adaptive.least)
                     .set("adaptive_peak_bytes", bench.adaptive_peak)
                     .set("ratio", ratio)
                     .dump()
              << "\n";
    return 0;
  }
  const auto line = [](const char* name, const RunTime& time, size_t peak) {
    std::cout << std::left << std::setw(18) << name << std::right << std::fixed
              << std::setprecision(2) << std::setw(14) << time.median << std::setw(12)
              << static_cast<double>(peak) / kMiB << "\n";
  };
  std::cout << name_of(options.device) << ", " << words.dtype << ", " << options.words
            << " words, width " << options.width << ", " << options.tokens << " tokens\n"
            << std::left << std::setw(18) << "loss" << std::right << std::setw(14) << "fwd+bwd ms"
            << std::setw(12) << "peak MiB"
            << "\n";
  line("table", bench.table, bench.table_peak);
  line("adaptive", bench.adaptive, bench.adaptive_peak);
  std::cout << "adaptive is " << std::setprecision(1) << ratio << " times as fast\n";
  return 0;
}

}  // namespace

void add_bench_loss(CLI::App& bench, Command& chosen) {
  struct Arguments {
    LossBenchOptions options;
    OperationWords words;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  LossBenchOptions& options = arguments->options;
  CLI::App* command = bench.add_subcommand(
      "loss", "the loss of a language model alone: one table of all words, and adaptive softmax");
  command->add_option("--words", options.words, "the vocabulary, drawn by Zipf's law")
      ->capture_default_str();
  command->add_option("--width", options.width, "hidden size")->capture_default_str();
  command->add_option("--tokens", options.tokens, "targets of a batch")->capture_default_str();
  command->add_option("--cutoffs", options.cutoffs, "model.cutoffs of the adaptive softmax")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--runs", options.runs, "timed runs at most, of which the median is printed")
      ->capture_default_str()
      ->check(between(1, kMaxRuns));
  command
      ->add_option("--dtype", arguments->words.dtype, "f32 or bf16, of activations and parameters")
      ->capture_default_str();
  add_device_option(*command, arguments->words.device);
  add_threads_option(*command);
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      arguments->options.device = use_device(arguments->words.device);
      arguments->options.dtype = operation_dtype(arguments->words.dtype);
      return bench_loss_command(arguments->options, arguments->words, arguments->json);
    };
  });
}

}  // namespace linnet::cli
