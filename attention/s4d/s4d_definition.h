// S4D by plain loops: its convolution with the kernel that the modes make.
#pragma once

#include <complex>
#include <numbers>

#include "attention/reference.h"
#include "attention/s4d/s4d.h"

namespace linnet::s4d_definition {

// The kernel of channel h and read-out g at distances 0, 1, ... T - 1, with the read-out of that
// name.
template <typename Number>
std::vector<Number> kernel(const S4dParams& params, const ReferenceSequence<Number>& s, int64_t g,
                           int64_t h, const std::string& read_out) {
  using Complex = std::complex<Number>;
  const int64_t M = params.modes();
  const std::vector<Number>& c = s.parameter(read_out);
  const Number step = std::exp(s.parameter("rates.log_step")[static_cast<size_t>(h)]);
  std::vector<Number> k(static_cast<size_t>(s.T), 0);
  for (int64_t n = 0; n < M; ++n) {
    const auto rate = static_cast<size_t>(params.shared ? n : h * M + n);
    const Complex a(-std::exp(s.parameter("rates.log_decay")[rate]),
                    s.parameter("rates.frequency")[rate]);
    const Complex half = step * a / Number{2}, one(1);
    const bool zoh = params.discretization == "zoh";
    const Complex log_pole = zoh ? step * a : std::log((one + half) / (one - half));
    const Complex gain = zoh ? (std::exp(step * a) - one) / a : step / (one - half);
    const auto at = static_cast<size_t>(((g * s.E + h) * M + n) * 2);
    const Complex weight = Complex(c[at], c[at + 1]) * gain;
    for (int64_t tau = 0; tau < s.T; ++tau) {
      k[static_cast<size_t>(tau)] +=
          2 * (weight * std::exp(static_cast<Number>(tau) * log_pole)).real();
    }
  }
  return k;
}

template <typename Number>
Number gelu(Number x) {
  return x * (1 + std::erf(x / std::numbers::sqrt2_v<Number>)) / 2;
}

// The input of the output projection, [T, channels E].
template <typename Number>
std::vector<Number> mixed(const S4dParams& params, const ReferenceSequence<Number>& s) {
  const int64_t width = params.channels * s.E;
  std::vector<Number> y(static_cast<size_t>(s.T * width), 0);
  const auto input = [&](int64_t t, int64_t h) {
    return s.key_valid[static_cast<size_t>(t)] == 0 ? Number{0}
                                                    : s.x[static_cast<size_t>(t * s.E + h)];
  };
  for (int64_t i = 0; i < width; ++i) {
    const int64_t g = i / s.E, h = i % s.E;
    const std::vector<Number> k = kernel(params, s, g, h, "c");
    std::vector<Number> later;
    if (params.bidirectional) later = kernel(params, s, g, h, "c_later");
    for (int64_t t = 0; t < s.T; ++t) {
      Number before = s.parameter("d")[static_cast<size_t>(i)] * input(t, h), after = 0;
      for (int64_t j = 0; j <= t; ++j) before += k[static_cast<size_t>(t - j)] * input(j, h);
      for (int64_t j = t + 1; params.bidirectional && j < s.T; ++j) {
        after += later[static_cast<size_t>(j - t - 1)] * input(j, h);
      }
      Number total = s.stored(before);
      if (params.bidirectional) total = s.stored(total + s.stored(after));
      y[static_cast<size_t>(t * width + i)] = s.stored(gelu(total));
    }
  }
  return y;
}

// x [T,I] by the weight and bias of that name.
template <typename Number>
std::vector<Number> projected(const ReferenceSequence<Number>& s, const std::vector<Number>& x,
                              const std::string& name) {
  const std::vector<Number>& weight = s.parameter(name + ".weight");
  const auto bias = s.parameters.find(name + ".bias");
  const int64_t in = static_cast<int64_t>(x.size()) / s.T;
  std::vector<Number> y;
  for (int64_t t = 0; t < s.T; ++t) {
    for (int64_t o = 0; o < s.E; ++o) {
      const Number product =
          dot_product(&x[static_cast<size_t>(t * in)], &weight[static_cast<size_t>(o * in)], in);
      y.push_back(product +
                  (bias == s.parameters.end() ? 0 : bias->second[static_cast<size_t>(o)]));
    }
  }
  return y;
}

template <typename Number>
std::vector<Number> definition(const S4dParams& params, const ReferenceSequence<Number>& s) {
  const std::vector<Number> y = mixed(params, s);
  if (params.output == "linear") return y;
  std::vector<Number> values = projected(s, y, "glu_value");
  const std::vector<Number> gates = projected(s, y, "glu_gate");
  for (size_t i = 0; i < values.size(); ++i) {
    const Number gate = s.stored(1 / (1 + std::exp(-gates[i])));
    values[i] = s.stored(s.stored(values[i]) * gate);
  }
  return values;
}

}  // namespace linnet::s4d_definition
