// linnet bench allreduce: sums over the processes of a job.
#include <algorithm>
#include <chrono>
#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <memory>

#include "core/comm/environment.h"
#include "core/json.h"
#include "tools/cli/bench/bench.h"

namespace linnet::cli {
namespace {

struct AllreduceOptions {
  std::vector<int64_t> sizes = {1024, 65'536, 1'048'576, 16'777'216};
  std::string dtype = "f32";
  int64_t runs = 20;
  bool json = false;
};

struct AllreduceTime {
  int64_t bytes = 0;
  double median_ms = 0;
  // The tensor's bytes by the time.
  double gb_per_s() const { return static_cast<double>(bytes) / median_ms / 1e6; }
};

// The median over the runs of the time on this rank; all begin together.
AllreduceTime time_of(Communicator& ranks, int64_t bytes, DType dtype, int64_t runs) {
  const int64_t elements = std::max<int64_t>(1, bytes / static_cast<int64_t>(size_of(dtype)));
  const Tensor values = Tensor::zeros({elements}, dtype);
  std::vector<double> times;
  for (int64_t run = -1; run < runs; ++run) {
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    ranks.all_reduce_sum(values);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    if (run >= 0) times.push_back(time.count());  // the first one warms up
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return {static_cast<int64_t>(values.bytes()), times[static_cast<size_t>(runs / 2)]};
}

int bench_allreduce(const AllreduceOptions& options) {
  const DType dtype = dtype_from_name(options.dtype);
  require_usage(is_floating(dtype), Cause{ErrorCode::unknown_name, "--dtype"},
                "--dtype must be f32, f64 or bf16, found ", options.dtype);
  const auto ranks = communicator_from_environment();
  const bool prints = ranks->rank() == 0;
  // What each rank sends and receives, in the measure of others' benchmarks.
  const double share = 2.0 * (ranks->size() - 1) / ranks->size();
  JsonValue results = JsonValue::array();
  if (prints && !options.json) {
    std::cout << "all_reduce_sum of " << options.dtype << ", " << ranks->size()
              << (ranks->size() == 1 ? " process" : " processes") << ", " << ranks->name() << "\n"
              << std::right << std::setw(14) << "bytes" << std::setw(12) << "ms" << std::setw(12)
              << "GB/s" << std::setw(12) << "bus GB/s"
              << "\n"
              << std::flush;
  }
  for (const int64_t bytes : options.sizes) {
    const AllreduceTime time = time_of(*ranks, bytes, dtype, options.runs);
    if (!prints) continue;
    results.push(JsonValue::object()
                     .set("bytes", time.bytes)
                     .set("median_ms", time.median_ms)
                     .set("gb_per_s", time.gb_per_s())
                     .set("bus_gb_per_s", share * time.gb_per_s()));
    if (!options.json) {
      std::cout << std::setw(14) << time.bytes << std::fixed << std::setprecision(3)
                << std::setw(12) << time.median_ms << std::setw(12) << time.gb_per_s()
                << std::setw(12) << share * time.gb_per_s() << "\n"
                << std::flush;
    }
  }
  if (prints && options.json) {
    std::cout << JsonValue::object()
                     .set("processes", ranks->size())
                     .set("communicator", std::string(ranks->name()))
                     .set("dtype", options.dtype)
                     .set("runs", options.runs)
                     .set("results", std::move(results))
                     .dump()
              << "\n";
  }
  return 0;
}

}  // namespace

void add_bench_allreduce(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<AllreduceOptions>();
  CLI::App* command = bench.add_subcommand(
      "allreduce", "sums over the processes of a job, which 'linnet launch' starts");
  command->add_option("--sizes", options->sizes, "bytes of the tensors")
      ->delimiter(',')
      ->check(between(1, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "f32, f64 or bf16")->capture_default_str();
  command
      ->add_option("--runs", options->runs,
                   "timed sums of each size, of whose times on rank 0 the median is printed")
      ->check(between(1, kMaxRuns))
      ->capture_default_str();
  add_threads_option(*command);
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback(
      [options, &chosen] { chosen = [options] { return bench_allreduce(*options); }; });
}

}  // namespace linnet::cli
