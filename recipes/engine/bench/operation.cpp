#include "recipes/engine/bench/operation.h"

#include "core/device.h"

namespace linnet {

void require_sizes(const OperationOptions& options) {
  // The limits of recipes, so that products of sizes stay within 64 bits.
  const auto limited = [](const char* option, const char* what, int64_t value, int64_t most) {
    require_usage(1 <= value && value <= most, Cause{ErrorCode::out_of_range, option},
                  "bench: ", what, " must be 1 to ", most, ", got ", value);
  };
  limited("--batch", "--batch", options.batch, 1 << 20);
  limited("--heads", "--heads", options.heads, 1024);
  limited("--head-width", "--head-width", options.head_width, 65536);
  limited("--runs", "--runs", options.runs, 1'000'000);
  for (const int64_t length : options.lengths) limited("--lengths", "a length", length, 1 << 24);
  require_different("--lengths", "the length", options.lengths);
  require_usage(!options.cold || options.device.kind == DeviceKind::cpu,
                Cause{ErrorCode::conflict, "--cold"}, "bench: --cold is for a CPU; on ",
                name_of(options.device),
                " runs alternate between inputs that its cache does not hold anyway");
}

void measure(OperationBench& result, const OperationOptions& options,
             const std::function<Variable()>& run, const Tensor& seed) {
  const Device device = options.device;
  const std::function<void()> prepare = options.cold ? empty_caches : std::function<void()>();
  const auto forward = [&] {
    const NoGrad off;
    run();
  };
  result.forward = time_runs(device, options.runs, forward, prepare);
  reset_peak_memory(device);
  const size_t held = allocated_bytes(device);
  const auto forward_backward = [&] { backward({run()}, {seed}); };
  result.forward_backward = time_runs(device, options.runs, forward_backward, prepare);
  result.peak_bytes = peak_allocated_bytes(device) - held;
}

}  // namespace linnet
