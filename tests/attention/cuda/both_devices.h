// Shared by tests that compare a call on the device with the CPU's in double: masks with NaN
// behind them, inputs as each stores them, results with all gradients.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "tests/bf16_tolerance.h"

namespace linnet::test {

// Row 0 lacks every fifth token, the last row its end.
inline std::vector<uint8_t> mask_of(int64_t rows, int64_t length) {
  std::vector<uint8_t> mask(static_cast<size_t>(rows * length), 1);
  for (int64_t t = 0; t < length; ++t) {
    mask[static_cast<size_t>(t)] = t % 5 == 3 ? 0 : 1;
    mask[static_cast<size_t>((rows - 1) * length + t)] = t < length / 2 ? 1 : 0;
  }
  return mask;
}

// Masked tokens of x [B,T,...], in f64, become NaN.
inline void put_nan_behind(const std::vector<uint8_t>& mask, const Tensor& x) {
  const int64_t width = x.elements() / std::max(int64_t{1}, static_cast<int64_t>(mask.size()));
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (mask[static_cast<size_t>(i / width)] == 0) {
      x.data<double>()[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

// The dtype of calls unless a test says otherwise: the CPU is the reference in double.
inline DType usual_dtype(Device device) {
  return device == kGpu ? DType::bf16 : DType::f64;
}

// x itself where the call computes in double, else `stored`; undefined where x is.
inline Variable input_on(Device device, const Tensor& x, DType stored, DType computed) {
  if (!x.defined()) return {};
  return Variable(x.to(computed == DType::f64 ? DType::f64 : stored).to(device), true);
}

// The outputs, then the gradients of every defined input; those of outputs are numbers that
// `rounded` holds, so that all devices start from the same.
inline std::vector<Tensor> with_gradients(const std::vector<Variable>& outputs,
                                          const std::vector<Variable>& inputs,
                                          DType rounded = DType::bf16) {
  std::vector<Tensor> found, seeds;
  for (const Variable& output : outputs) {
    found.push_back(output.value());
    seeds.push_back(random_tensor(output.shape(), "seed" + std::to_string(seeds.size()))
                        .to(rounded)
                        .to(output.dtype())
                        .to(output.value().device()));
  }
  backward(outputs, seeds);
  for (const Variable& x : inputs) {
    if (x.defined()) found.push_back(x.grad());
  }
  return found;
}

}  // namespace linnet::test
