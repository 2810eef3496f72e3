// What tests of CUDA code share: the device, and values that must come out as on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/tensor.h"
#include "tests/tensor_helpers.h"
#include "tests/worst.h"

namespace linnet::test {

inline constexpr Device kGpu{DeviceKind::cuda, 0};

// How far `got` is from `expected`, relative to the largest expected element; NaN stays NaN.
inline double relative_error(const Tensor& got, const Tensor& expected) {
  EXPECT_EQ(got.shape(), expected.shape());
  const std::vector<double> a = got.to_vector<double>(), b = expected.to_vector<double>();
  double worst = 0, scale = 1e-30;
  for (size_t i = 0; i < b.size(); ++i) {
    const double error = std::abs(a[i] - b[i]);
    keep_worst(worst, error);
    scale = std::max(scale, std::abs(b[i]));
  }
  return worst / scale;
}

}  // namespace linnet::test

#define EXPECT_CLOSE(got, expected, tolerance)                                   \
  do {                                                                           \
    const double error_of_it = linnet::test::relative_error(got, expected);      \
    EXPECT_TRUE(error_of_it <= (tolerance)) << "relative error " << error_of_it; \
  } while (false)
