#include "attention/s4d/s4d_init.h"

#include <cmath>
#include <complex>
#include <numbers>

namespace linnet::s4d {
namespace {

// to[i] = value(i), in the dtype of the tensor.
template <typename F>
void fill(const Tensor& to, const F& value) {
  for (int64_t i = 0; i < to.elements(); ++i) {
    if (to.dtype() == DType::f64) {
      to.data<double>()[i] = value(i);
    } else {
      to.data<float>()[i] = static_cast<float>(value(i));
    }
  }
}

double first_decay(const S4dParams& params) {
  return params.b_init == "normal" ? 0.5 + 1e-4 : 0.5;
}

double first_frequency(const S4dParams& params, int64_t n) {
  const auto mode = static_cast<double>(n), N = static_cast<double>(params.states);
  if (params.initial == "lin") return std::numbers::pi * mode;
  return N / std::numbers::pi * (N / (2 * mode + 1) - 1);
}

// B of one A: [M].
std::vector<std::complex<double>> scaled_b(const S4dParams& params, int64_t row,
                                           const RandomKey& key) {
  std::vector<std::complex<double>> b;
  double total = 0;
  for (int64_t n = 0; n < params.modes(); ++n) {
    const auto at = static_cast<uint64_t>(2 * (row * params.modes() + n));
    b.emplace_back(key.normal(at), key.normal(at + 1));
    const std::complex<double> a(-first_decay(params), first_frequency(params, n));
    total += 2 * std::norm(b.back() / a);
  }
  for (std::complex<double>& each : b) each /= std::sqrt(total);
  return b;
}

}  // namespace

Initializer log_steps(const S4dParams& params) {
  return [params](const Tensor& values, const RandomKey& key) {
    const double low = std::log(params.step_min), high = std::log(params.step_max);
    fill(values,
         [&](int64_t i) { return low + (high - low) * key.uniform(static_cast<uint64_t>(i)); });
  };
}

Initializer log_decays(const S4dParams& params) {
  return init_constant(std::log(first_decay(params)));
}

Initializer frequencies(const S4dParams& params) {
  return [params](const Tensor& values, const RandomKey&) {
    fill(values, [&](int64_t i) { return first_frequency(params, i % params.modes()); });
  };
}

Initializer read_outs(const S4dParams& params) {
  return [params](const Tensor& values, const RandomKey& key) {
    const int64_t width = values.size(1), M = params.modes();
    std::vector<std::vector<std::complex<double>>> b;
    for (int64_t row = 0; params.b_init == "normal" && row < params.rate_rows(width); ++row) {
      b.push_back(scaled_b(params, row, key.at("b")));
    }
    fill(values, [&](int64_t i) {
      const auto pair = static_cast<uint64_t>(i - i % 2);
      std::complex<double> c(key.normal(pair), key.normal(pair + 1));
      c /= std::numbers::sqrt2;
      const int64_t n = i / 2 % M, h = i / 2 / M % width;
      if (!b.empty()) c *= b[static_cast<size_t>(params.shared ? 0 : h)][static_cast<size_t>(n)];
      return i % 2 == 0 ? c.real() : c.imag();
    });
  };
}

}  // namespace linnet::s4d
