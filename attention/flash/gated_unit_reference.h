// The literal definition of the shared steps of gated attention units, in plain loops.
#pragma once

#include "attention/common/distance_bias.h"
#include "attention/flash/gated_unit.h"

namespace linnet {

// U and V [T,e] and the affine copies [T,s] of one sequence.
template <typename Number>
struct ReferenceUnit {
  int64_t e = 0, s = 0;
  std::vector<Number> gate, values;
  std::vector<std::vector<Number>> copies;

  const Number* copy(size_t which, int64_t i) const {
    return &copies[which][static_cast<size_t>(i * s)];
  }
  const Number* value(int64_t j) const { return &values[static_cast<size_t>(j * e)]; }
};

// silu(x W^T + b) of tokens [T,E].
template <typename Number>
std::vector<Number> reference_silu(const ReferenceSequence<Number>& s, const std::vector<Number>& x,
                                   const std::string& name) {
  const std::vector<Number>& weight = s.parameter(name + ".weight");
  const auto bias = s.parameters.find(name + ".bias");
  const auto width = static_cast<size_t>(s.E), out = weight.size() / width;
  std::vector<Number> y;
  for (size_t i = 0; i < static_cast<size_t>(s.T); ++i) {
    for (size_t o = 0; o < out; ++o) {
      Number sum = dot_product(&x[i * width], &weight[o * width], s.E);
      if (bias != s.parameters.end()) sum += bias->second[o];
      sum = s.stored(sum);
      y.push_back(s.stored(sum / (1 + std::exp(-sum))));
    }
  }
  return y;
}

template <typename Number>
ReferenceUnit<Number> reference_unit(const GatedUnitOptions& params,
                                     const ReferenceSequence<Number>& s,
                                     const std::vector<std::string>& copies) {
  std::vector<Number> x = s.x;
  for (int64_t i = 0; params.token_shift && i < s.T; ++i) {
    const bool follows = i > 0 && s.key_valid[static_cast<size_t>(i - 1)] != 0;
    for (int64_t c = 0; c < s.E / 2; ++c) {
      x[static_cast<size_t>(i * s.E + c)] =
          follows ? s.x[static_cast<size_t>((i - 1) * s.E + c)] : Number{0};
    }
  }
  ReferenceUnit<Number> unit;
  unit.e = params.expansion * s.E;
  unit.s = params.key_width;
  unit.gate = reference_silu(s, x, "gate");
  unit.values = reference_silu(s, x, "value");
  const std::vector<Number> shared = reference_silu(s, x, "shared");
  const int64_t rotated = params.rotary_width();
  for (const std::string& name : copies) {
    const std::vector<Number>&gamma = s.parameter(name + ".gamma"),
          &beta = s.parameter(name + ".beta");
    std::vector<Number>& copy = unit.copies.emplace_back();
    for (size_t i = 0; i < shared.size(); ++i) {
      const size_t c = i % static_cast<size_t>(unit.s);
      copy.push_back(s.stored(gamma[c] * shared[i] + beta[c]));
    }
    for (int64_t i = 0; i < s.T; ++i) {
      for (int64_t c = 0; c < rotated; c += 2) {
        const Number angle =
            static_cast<Number>(s.positions[static_cast<size_t>(i)]) *
            std::pow(Number{10000}, -static_cast<Number>(c) / static_cast<Number>(rotated));
        Number* pair = &copy[static_cast<size_t>(i * unit.s + c)];
        const Number left = pair[0], right = pair[1];
        pair[0] = s.stored(left * std::cos(angle) - right * std::sin(angle));
        pair[1] = s.stored(left * std::sin(angle) + right * std::cos(angle));
      }
    }
  }
  return unit;
}

template <typename Number>
Number reference_weight(BlockWeights weights, Number x) {
  if (weights == BlockWeights::relu_squared) return x > 0 ? x * x : Number{0};
  const Number deviation = std::sqrt(1 / (4 * static_cast<Number>(std::numbers::pi)));
  const Number middle = std::sqrt(Number{0.5});
  return (1 + std::erf((x - middle) / (deviation * std::sqrt(Number{2})))) / 2;
}

// rope(a, 0) . rope(b, distance), times the factor.
template <typename Number>
Number reference_rotary_bias(const ReferenceSequence<Number>& s, int64_t distance, Number factor) {
  const std::vector<Number>&a = s.parameter("distance_query"), &b = s.parameter("distance_key");
  Number product = 0;
  for (size_t c = 0; c < a.size(); c += 2) {
    const Number angle =
        static_cast<Number>(distance) *
        std::pow(Number{10000}, -static_cast<Number>(c) / static_cast<Number>(a.size()));
    product += a[c] * s.stored(b[c] * std::cos(angle) - b[c + 1] * std::sin(angle)) +
               a[c + 1] * s.stored(b[c] * std::sin(angle) + b[c + 1] * std::cos(angle));
  }
  return s.stored(factor * s.stored(product));
}

// The bias of a distance (key - query) below `reach`, `factor` included.
template <typename Number>
Number reference_bias(const GatedUnitOptions& params, const ReferenceSequence<Number>& s,
                      int64_t distance, Number factor, int64_t reach) {
  if (params.bias == "none") return 0;
  if (params.bias == "rope") return reference_rotary_bias(s, distance, factor);
  const std::vector<Number>& bias = s.parameter("distance_bias");
  if (params.bias == "toeplitz") {
    return s.stored(factor * bias[static_cast<size_t>(distance + reach - 1)]);
  }
  return s.stored(factor * std::sqrt(static_cast<Number>(params.key_width)) *
                  bias[reference_distance_bucket(distance, s.form == Form::causal)]);
}

// N.
template <typename Number>
Number reference_divisor(const GatedUnitOptions& params, const ReferenceSequence<Number>& s) {
  return static_cast<Number>(params.length == "padded" ? s.padded_length : s.options.max_length);
}

}  // namespace linnet
