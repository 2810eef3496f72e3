#include "recipes/engine/bench_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/random.h"

namespace linnet {

double time_once(Device device, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  body();
  device_interface(device).synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double median_seconds(Device device, int64_t runs, const std::function<void()>& body) {
  constexpr double kEnough = 3;
  double total = time_once(device, body);
  if (total > kEnough) return total;
  std::vector<double> seconds;
  for (total = 0; std::ssize(seconds) < runs && total < kEnough; total += seconds.back()) {
    seconds.push_back(time_once(device, body));
  }
  return median(std::move(seconds));
}

Tensor bench_numbers(const Shape& shape, uint64_t site, DType dtype, Device device) {
  constexpr int64_t kPeriod = 1'000'003;
  const Tensor values = Tensor::zeros(shape);
  const RandomKey key{1, 0, site};
  float* numbers = values.data<float>();
  for (int64_t i = 0; i < values.elements(); ++i) {
    numbers[i] = i < kPeriod ? static_cast<float>(key.normal(static_cast<uint64_t>(i)))
                             : numbers[i - kPeriod];
  }
  return values.to(dtype).to(device);
}

int64_t inputs_by_turns(size_t bytes, Device device) {
  constexpr size_t kBeyondAnyCache = size_t{128} << 20;
  constexpr size_t kMost = 64;
  if (device.kind == DeviceKind::cpu) return 1;
  return static_cast<int64_t>(std::min(kMost, kBeyondAnyCache / std::max<size_t>(bytes, 1) + 1));
}

double worst_error(const Tensor& got, const Tensor& expected) {
  require(got.shape() == expected.shape(), "worst_error: expected ", expected.shape(), ", got ",
          got.shape());
  const Tensor a = got.to(Device{}).to(DType::f32), b = expected.to(Device{}).to(DType::f32);
  const float* numbers = a.data<float>();
  const float* wanted = b.data<float>();
  double worst = 0, scale = 1e-30;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double error = std::abs(static_cast<double>(numbers[i]) - static_cast<double>(wanted[i]));
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
    scale = std::max(scale, std::abs(static_cast<double>(wanted[i])));
  }
  return worst / scale;
}

}  // namespace linnet
