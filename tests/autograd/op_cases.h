// A few lines that most tests of operations need: gradients of f64 inputs checked element by
// element, and the same operation in another precision.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "autograd/grad_check.h"
#include "autograd/variable.h"
#include "tests/bf16_tolerance.h"

namespace linnet::test {

using Function = std::function<std::vector<Variable>(const std::vector<Variable>&)>;

// Whether every element of every input has the gradient that finite differences give.
inline testing::AssertionResult gradients_agree(const Function& function,
                                                const std::vector<Tensor>& inputs,
                                                const GradCheckOptions& options = {}) {
  const GradCheckResult result = grad_check(function, inputs, options);
  if (result.passed) return testing::AssertionSuccess();
  return testing::AssertionFailure() << result.message;
}

// Values and gradients of one run: outputs, then the gradient of every defined input.
struct Run {
  std::vector<Tensor> outputs, gradients;
  // In that order.
  std::vector<Tensor> all() const {
    std::vector<Tensor> list = outputs;
    list.insert(list.end(), gradients.begin(), gradients.end());
    return list;
  }
};

// Runs function on inputs converted to `dtype` on `device`, and backward with fixed random seeds
// (rounded to bf16 values, so that they are the same in every precision).
inline Run run_in(DType dtype, const Function& function, const std::vector<Tensor>& inputs,
                  Device device = {}) {
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) {
    variables.push_back(input.defined()
                            ? Variable(input.to(DType::bf16).to(dtype).to(device).clone(), true)
                            : Variable());
  }
  Run run;
  std::vector<Tensor> seeds;
  const std::vector<Variable> outputs = function(variables);
  for (size_t i = 0; i < outputs.size(); ++i) {
    run.outputs.push_back(outputs[i].value());
    seeds.push_back(random_tensor(outputs[i].shape(), concat("seed", i), DType::bf16)
                        .to(outputs[i].dtype())
                        .to(device));
  }
  backward(outputs, seeds);
  for (const Variable& variable : variables) {
    if (variable.defined()) run.gradients.push_back(variable.grad());
  }
  return run;
}

// Whether values and gradients in f32 and bf16 on `device` agree with those in f64 on the CPU
// within `roundings` unit roundoffs of the largest element of each tensor. In bf16 the CPU is plain
// arithmetic, from whose error follows what is allowed to other devices.
inline testing::AssertionResult precisions_agree(const Function& function,
                                                 const std::vector<Tensor>& inputs,
                                                 double roundings, Device device = {}) {
  const Run exact = run_in(DType::f64, function, inputs);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Run run = run_in(dtype, function, inputs, device);
    if (dtype == DType::bf16 && device != Device{}) {
      const Run plain = run_in(dtype, function, inputs);
      expect_close_in_bf16(run.all(), exact.all(), plain.all());
      continue;
    }
    const auto check = [&](const std::vector<Tensor>& a, const std::vector<Tensor>& e,
                           const char* what) {
      for (size_t i = 0; i < e.size(); ++i) {
        double largest = 0;
        for (const double value : e[i].to_vector<double>()) {
          largest = std::max(largest, std::abs(value));
        }
        const double unit = dtype == DType::f32 ? 0x1p-24 : 0x1p-8;
        if (const auto result = close(a[i], e[i], roundings * unit * largest); !result) {
          return testing::AssertionFailure()
                 << name_of(dtype) << " " << what << " " << i << ": " << result.message();
        }
      }
      return testing::AssertionSuccess();
    };
    if (const auto result = check(run.outputs, exact.outputs, "output"); !result) return result;
    if (const auto result = check(run.gradients, exact.gradients, "gradient"); !result) {
      return result;
    }
  }
  return testing::AssertionSuccess();
}

// Whether values and gradients are bit for bit the same with 1, 2 and 3 threads.
inline testing::AssertionResult threads_agree(DType dtype, const Function& function,
                                              const std::vector<Tensor>& inputs) {
  Run first;
  for (const int count : {1, 2, 3}) {
    const Threads threads(count);
    const Run run = run_in(dtype, function, inputs);
    if (count == 1) first = run;
    for (size_t i = 0; i < run.outputs.size(); ++i) {
      if (const auto same = same_bits(run.outputs[i], first.outputs[i]); !same) {
        return testing::AssertionFailure()
               << count << " threads, output " << i << ": " << same.message();
      }
    }
    for (size_t i = 0; i < run.gradients.size(); ++i) {
      if (const auto same = same_bits(run.gradients[i], first.gradients[i]); !same) {
        return testing::AssertionFailure()
               << count << " threads, gradient " << i << ": " << same.message();
      }
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace linnet::test
