#include "tools/cli/bench/operation.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "core/threads.h"

namespace linnet::cli {
namespace {

JsonValue point_json(const OperationBench& point) {
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

// Prints the sizes that all points share, and the table's heading.
void print_heading(const OperationOptions& options, const OperationWords& words) {
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

void print_point(const OperationBench& point) {
  std::cout << std::left << std::setw(18) << point.mechanism << std::setw(11) << name_of(point.form)
            << std::right << std::setw(8) << point.length << std::fixed << std::setprecision(2)
            << std::setw(14) << point.forward.median << std::setprecision(1) << std::setw(10)
            << point.forward_gflop_per_s() << std::setprecision(2) << std::setw(14)
            << point.forward_backward.median << std::setw(12)
            << static_cast<double>(point.peak_bytes) / kMiB << std::endl;
}

}  // namespace

void add_operation_options(CLI::App& command, OperationOptions& options, OperationWords& words,
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
      ->check(between(1, kMaxRuns));
  command.add_option("--dtype", words.dtype, "f32 or bf16, of activations and parameters")
      ->capture_default_str();
  add_backend_option(command, words.backend);
  add_device_option(command, words.device);
  add_threads_option(command);
}

DType operation_dtype(const std::string& name) {
  require_usage(name == "f32" || name == "bf16", Cause{ErrorCode::unknown_name, "--dtype"},
                "bench: --dtype is f32 or bf16, got ", name);
  return dtype_from_name(name);
}

OnPoint printed_at_once(const OperationOptions& options, const OperationWords& words, bool json,
                        WorkProgress& progress) {
  if (json) return {};
  return [&, headed = false](const OperationBench& point) mutable {
    progress.erase();
    if (!headed) print_heading(options, words);
    headed = true;
    print_point(point);
  };
}

JsonValue report_json(const OperationOptions& options, const OperationWords& words,
                      const std::vector<OperationBench>& results) {
  JsonValue points = JsonValue::array();
  for (const OperationBench& point : results) points.push(point_json(point));
  return JsonValue::object()
      .set("device", name_of(options.device))
      .set("threads", thread_count())
      .set("dtype", words.dtype)
      .set("backend", words.backend)
      .set("cold", options.cold)
      .set("points", points);
}

}  // namespace linnet::cli
