#include "recipes/engine/bench/operation.h"

#include "core/device.h"

namespace linnet {

void require_sizes(const OperationOptions& options) {
  const auto positive = [](const char* option, const char* what, int64_t value) {
    require_usage(value >= 1, Cause{ErrorCode::out_of_range, option}, "bench: ", what,
                  " must be at least 1, got ", value);
  };
  positive("--batch", "--batch", options.batch);
  positive("--heads", "--heads", options.heads);
  positive("--head-width", "--head-width", options.head_width);
  positive("--runs", "--runs", options.runs);
  for (const int64_t length : options.lengths) positive("--lengths", "a length", length);
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
