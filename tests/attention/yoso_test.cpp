// YOSO: its surrogate gradient, against the paper's formula in plain loops.
#include "attention/yoso/yoso.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/yaml.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 1, kLength = 6, kWidth = 4, kBits = 5;
using Vectors = std::vector<std::vector<double>>;

Vectors draws(const char* name) {
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  Vectors result(kLength);
  for (uint64_t i = 0; i < kLength * kWidth; ++i) result[i / kWidth].push_back(key.normal(i));
  return result;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double total = 0;
  for (size_t c = 0; c < a.size(); ++c) total += a[c] * b[c];
  return total;
}

std::vector<double> unit(std::vector<double> x) {
  const double length = std::sqrt(dot(x, x));
  for (double& value : x) value /= length;
  return x;
}

// The gradient of x where `d` is that of x / |x|.
std::vector<double> through_norm(const std::vector<double>& x, const std::vector<double>& d) {
  const std::vector<double> u = unit(x);
  const double along = dot(u, d), length = std::sqrt(dot(x, x));
  std::vector<double> result;
  for (size_t c = 0; c < x.size(); ++c) result.push_back((d[c] - along * u[c]) / length);
  return result;
}

void add(std::vector<double>& to, double factor, const std::vector<double>& x) {
  for (size_t c = 0; c < x.size(); ++c) to[c] += factor * x[c];
}

Variable leaf(const Vectors& x) {
  const Tensor values = Tensor::empty({kRows, kLength, 1, kWidth}, DType::f64);
  for (int64_t i = 0; i < values.elements(); ++i) {
    values.data<double>()[i] = x[static_cast<size_t>(i / kWidth)][static_cast<size_t>(i % kWidth)];
  }
  return Variable(values, true);
}

void expect_equal(const Variable& x, const Vectors& expected, const char* what) {
  for (int64_t i = 0; i < x.grad().elements(); ++i) {
    EXPECT_NEAR(x.grad().data<double>()[i],
                expected[static_cast<size_t>(i / kWidth)][static_cast<size_t>(i % kWidth)], 1e-12)
        << what << i;
  }
}

TEST(Yoso, BackwardIsTheSurrogate) {
  const Vectors q = draws("q"), k = draws("k"), v = draws("v"), dy = draws("dy");
  const Vectors zeros(kLength, std::vector<double>(kWidth, 0));
  Vectors dq = zeros, dk = zeros, dv = zeros, dk_unit = zeros;
  for (size_t i = 0; i < kLength; ++i) {
    std::vector<double> weights, y(kWidth, 0), dq_unit(kWidth, 0);
    for (size_t j = 0; j < kLength; ++j) {
      const double angle = std::acos(dot(unit(q[i]), unit(k[j])));
      weights.push_back(std::pow(1 - angle / std::numbers::pi, kBits));
      add(y, weights[j], v[j]);
    }
    const std::vector<double> G = through_norm(y, dy[i]);
    for (size_t j = 0; j < kLength; ++j) {
      const double slope = 0.5 * kBits * weights[j] * dot(G, v[j]);
      add(dq_unit, slope, unit(k[j]));
      add(dk_unit[j], slope, unit(q[i]));
      add(dv[j], weights[j], G);
    }
    dq[i] = through_norm(q[i], dq_unit);
  }
  for (size_t j = 0; j < kLength; ++j) dk[j] = through_norm(k[j], dk_unit[j]);

  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = kWidth;
  options.heads = 1;
  options.form = Form::noncausal;
  const auto mixer = find_mechanism("yoso").make(parse_yaml("{bits: 5}", "test"), options,
                                                 {root.child("own"), root.child("tied")});
  const auto& attention = dynamic_cast<const AttentionMixer&>(*mixer);
  const Variable vq = leaf(q), vk = leaf(k), vv = leaf(v);
  backward({attention.mix({vq, vk, vv, {}, {}}, {}, {}).y}, {leaf(dy).value()});
  expect_equal(vq, dq, "dq");
  expect_equal(vk, dk, "dk");
  expect_equal(vv, dv, "dv");
}

}  // namespace
}  // namespace linnet
