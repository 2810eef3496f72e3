// Calls of the operations that mechanisms are composed of, for checks on every device.
#pragma once

#include <vector>

#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "tests/autograd/op_cases.h"

namespace linnet::test {

struct ComposingCase {
  const char* name;
  // Called with the device on which masks and indices must be.
  std::function<std::vector<Variable>(const std::vector<Variable>&, Device)> function;
  std::vector<Shape> inputs;
  // Rounding errors of f32 in units of the largest element of a result.
  double roundings = 4;
  // Inputs are positive: x^2 + 0.3 of the random ones.
  bool positive = false;
};

inline std::vector<ComposingCase> composing_cases() {
  using V = const std::vector<Variable>&;
  using R = std::vector<Variable>;
  const Shape s{3, 5, 7, 4};
  const auto mask_of = [](const Shape& shape, Device device) {
    std::vector<uint8_t> values(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 1 ? 0 : 1;
    return Tensor::from(values, shape, device);
  };
  const auto index_of = [](const Shape& shape, int64_t n, Device device) {
    std::vector<int32_t> values(static_cast<size_t>(shape.elements()));
    // Repetitions, and some rows that are none.
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<int32_t>(static_cast<int64_t>(i * i + i / 2) % (n + 1)) - 1;
    }
    return Tensor::from(values, shape, device);
  };
  std::vector<ComposingCase> cases;
  const auto one = [&](const char* name, Variable (*f)(const Variable&), double roundings,
                       bool positive = false) {
    cases.push_back(
        {name, [f](V v, Device) { return R{f(v[0])}; }, {{7, 31}}, roundings, positive});
  };
  one("exp", exp, 8);
  one("log", log, 8, true);
  one("sqrt", sqrt, 8, true);
  one("tanh", tanh, 8);
  one("sigmoid", sigmoid, 8);
  one("softplus", softplus, 8);
  one("silu", silu, 8);
  const auto two = [&](const char* name, Variable (*f)(const Variable&, const Variable&)) {
    const std::pair<Shape, Shape> pairs[] = {{s, s},
                                             {s, {7, 4}},
                                             {{4}, s},
                                             {{3, 1, 7, 1}, {5, 1, 4}},
                                             {s, {}},
                                             {{1, 5, 1, 1}, s},
                                             {{2, 3, 1}, {2, 1, 5}}};
    for (const auto& [a, b] : pairs) {
      cases.push_back({name, [f](V v, Device) { return R{f(v[0], v[1])}; }, {a, b}, 16, true});
    }
  };
  two("add", add);
  two("subtract", subtract);
  two("multiply", multiply);
  two("divide", divide);
  cases.push_back({"dot", [](V v, Device) { return R{dot(v[0], v[1]), dot(v[1], v[1])}; }, {s, s}});
  cases.push_back({"permute", [](V v, Device) { return R{permute(v[0], {2, 0, -1, 1})}; }, {s}});
  cases.push_back({"transpose", [](V v, Device) { return R{transpose(v[0], 1, -1)}; }, {s}});
  cases.push_back({"slice",
                   [](V v, Device) {
                     return R{slice(v[0], 1, 2, 4), slice(v[0], -1, 0, 3), slice(v[0], 0, 1, 1)};
                   },
                   {s}});
  cases.push_back({"concatenate",
                   [](V v, Device) {
                     return R{concatenate({v[0], v[1], v[0]}, 1)};
                   },
                   {{3, 5, 4}, {3, 2, 4}}});
  cases.push_back({"expand",
                   [](V v, Device) {
                     return R{expand(v[0], {3, 5, 7, 4})};
                   },
                   {{5, 1, 4}},
                   16});
  for (const int64_t d : {0, 1, 3}) {
    const auto along = [&](const char* name, Variable (*f)(const Variable&, int64_t),
                           double roundings) {
      cases.push_back({name, [f, d](V v, Device) { return R{f(v[0], d)}; }, {s}, roundings});
    };
    along("sum", sum, 4);
    along("mean", mean, 4);
    along("max", max, 4);
    along("logsumexp", logsumexp, 8);
    along("softmax", softmax, 8);
    for (const bool reverse : {false, true}) {
      cases.push_back({"cumulative_sum",
                       [d, reverse](V v, Device) { return R{cumulative_sum(v[0], d, reverse)}; },
                       {s},
                       16});
    }
  }
  for (const Transpose ta : {Transpose::no, Transpose::yes}) {
    for (const Transpose tb : {Transpose::no, Transpose::yes}) {
      const bool a = ta == Transpose::yes, b = tb == Transpose::yes;
      cases.push_back(
          {"matmul",
           [ta, tb](V v, Device) { return R{matmul(v[0], v[1], ta, tb)}; },
           {a ? Shape{2, 3, 6, 5} : Shape{2, 3, 5, 6}, b ? Shape{2, 3, 4, 6} : Shape{2, 3, 6, 4}},
           16});
      if (a) continue;
      cases.push_back({"matmul of one",
                       [tb](V v, Device) { return R{matmul(v[0], v[1], Transpose::no, tb)}; },
                       {{2, 3, 5, 6}, b ? Shape{4, 6} : Shape{6, 4}},
                       16});
    }
  }
  cases.push_back({"unit_triangular_solve",
                   [](V v, Device) { return R{unit_triangular_solve(v[0], v[1])}; },
                   {{2, 3, 6, 6}, {2, 3, 6, 5}},
                   256});
  cases.push_back({"masked_fill",
                   [mask_of](V v, Device device) {
                     return R{masked_fill(v[0], mask_of(v[0].shape(), device), 0.5),
                              masked_fill(v[0], mask_of({3, 1, 7, 1}, device), -2)};
                   },
                   {s}});
  cases.push_back(
      {"fill_above_diagonal",
       [](V v, Device) {
         return R{fill_above_diagonal(v[0], 0.5), fill_above_diagonal(transpose(v[0], 2, 3), -2)};
       },
       {s}});
  cases.push_back({"gather",
                   [index_of](V v, Device device) {
                     return R{gather(v[0], index_of({3, 5, 9}, 7, device)),
                              gather(v[0], index_of({8}, 3, device))};
                   },
                   {s},
                   16});
  cases.push_back({"gather with the inverse of its index",
                   [](V v, Device device) {
                     std::vector<int32_t> index, inverse;
                     for (int32_t r = 0; r < 3; ++r) {
                       index.insert(index.end(), {4, -1, 0, 3});
                       inverse.insert(inverse.end(), {2, -1, -1, 3, 0});
                     }
                     return R{gather(v[0], Tensor::from(index, {3, 4}, device),
                                     Tensor::from(inverse, {3, 5}, device))};
                   },
                   {s}});
  cases.push_back({"scatter_add",
                   [index_of](V v, Device device) {
                     return R{scatter_add(v[0], index_of({3, 5, 7}, 4, device), 4),
                              scatter_add(v[0], index_of({3, 5}, 2, device), 2)};
                   },
                   {s},
                   16});
  return cases;
}

inline std::vector<Tensor> inputs_of(const ComposingCase& c) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(random_tensor(c.inputs[i], concat(c.name, i)));
    double* values = inputs.back().data<double>();
    for (int64_t j = 0; c.positive && j < inputs.back().elements(); ++j) {
      values[j] = values[j] * values[j] + 0.3;
    }
  }
  return inputs;
}

}  // namespace linnet::test
