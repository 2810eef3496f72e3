// Gradient norms and clipping.
#include "optim/clip.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kBlock = 8192;
constexpr int64_t kLanes = 16;

// Independent partial sums, so that the loop vectorises while the order of additions stays fixed.
template <typename T>
double sum_of_squares(const T* values, int64_t count) {
  std::array<double, kLanes> lanes{};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[static_cast<size_t>(lane)] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (int64_t i = whole; i < count; ++i) {
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return sum;
}

// Calls body with the typed elements of a gradient buffer.
template <typename Body>
void on_gradients(const char* function, const Tensor& gradients, const Body& body) {
  require(gradients.device().kind == DeviceKind::cpu, function, ": gradients are on ",
          name_of(gradients.device()), "; expected the CPU");
  if (gradients.dtype() == DType::f64) {
    body(gradients.data<double>());
  } else {
    body(gradients.data<float>());
  }
}

}  // namespace

double global_norm(const Tensor& gradients) {
  const int64_t count = gradients.elements();
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  on_gradients("global_norm", gradients, [&](const auto* values) {
    parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        sums[static_cast<size_t>(b)] =
            sum_of_squares(values + b * kBlock, std::min(kBlock, count - b * kBlock));
      }
    });
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
}

double clip_factor(double norm, double limit) {
  require(std::isfinite(norm), "clip_factor: the gradient norm is ", norm);
  return limit > 0 && norm > limit ? limit / norm : 1;
}

void clip_by_value(const Tensor& gradients, double limit) {
  require(limit > 0, "clip_by_value: the limit must be positive, got ", limit);
  const int64_t count = gradients.elements();
  on_gradients("clip_by_value", gradients, [&](auto* values) {
    using T = std::remove_pointer_t<decltype(values)>;
    const T high = static_cast<T>(limit);
    parallel_for(count, kBlock, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T value = values[i];
        values[i] = value > high ? high : value < -high ? -high : value;
      }
    });
  });
}

std::string first_non_finite(const Tensor& gradients, const std::vector<ParameterSpan>& layout) {
  std::string name;
  on_gradients("first_non_finite", gradients, [&](const auto* values) {
    for (const ParameterSpan& span : layout) {
      const bool finite = std::all_of(values + span.begin, values + span.end,
                                      [](auto value) { return std::isfinite(value); });
      if (!finite) {
        name = span.name;
        return;
      }
    }
  });
  return name;
}

}  // namespace linnet
