#include "recipes/engine/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include "core/random.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr size_t kBeyondAnyCache = size_t{128} << 20;

// Seconds for which the calling thread has had a processor.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

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

RunTime time_runs(Device device, int64_t runs, const std::function<void()>& body,
                  const std::function<void()>& prepare) {
  constexpr double kEnough = 3, kTooLong = 8;  // seconds: of all runs, of one to be repeated
  // Of several threads the calling one may do next to nothing.
  const bool alone = device.kind == DeviceKind::cpu && thread_count() == 1;
  std::vector<double> all, own;
  const auto run = [&] {
    if (prepare) prepare();
    const double before = thread_seconds();
    all.push_back(time_once(device, body));
    own.push_back(alone ? thread_seconds() - before : all.back());
  };
  run();
  if (own.front() <= kTooLong) {
    all.clear();
    own.clear();
    for (double total = 0; std::ssize(all) < runs && total < kEnough; total += own.back()) run();
  }
  return {1e3 * median(all), 1e3 * *std::min_element(own.begin(), own.end())};
}

Tensor bench_values(const Shape& shape, uint64_t site, DType dtype, Device device) {
  constexpr int64_t kPeriod = 1'000'003;
  const Tensor values = Tensor::zeros(shape);
  const RandomKey key{1, 0, site};
  float* drawn = values.data<float>();
  for (int64_t i = 0; i < values.elements(); ++i) {
    drawn[i] =
        i < kPeriod ? static_cast<float>(key.normal(static_cast<uint64_t>(i))) : drawn[i - kPeriod];
  }
  return values.to(dtype).to(device);
}

void empty_caches() {
  constexpr size_t kLine = 64;
  static std::vector<unsigned char> memory(kBeyondAnyCache);
  for (size_t i = 0; i < memory.size(); i += kLine) ++memory[i];
}

int64_t alternating_inputs(size_t bytes, Device device) {
  constexpr size_t kMax = 64;
  if (device.kind == DeviceKind::cpu) return 1;
  return static_cast<int64_t>(std::min(kMax, kBeyondAnyCache / std::max<size_t>(bytes, 1) + 1));
}

double worst_error(const Tensor& got, const Tensor& expected) {
  require(got.shape() == expected.shape(), "worst_error: expected ", expected.shape(), ", got ",
          got.shape());
  const Tensor a = got.to(Device{}).to(DType::f32), b = expected.to(Device{}).to(DType::f32);
  const float* found = a.data<float>();
  const float* wanted = b.data<float>();
  double worst = 0, scale = 1e-30;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double error = std::abs(static_cast<double>(found[i]) - static_cast<double>(wanted[i]));
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
    scale = std::max(scale, std::abs(static_cast<double>(wanted[i])));
  }
  return worst / scale;
}

}  // namespace linnet
