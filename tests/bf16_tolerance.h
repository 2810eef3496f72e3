// How close results in bf16 must be: the tolerance of every tensor is derived from the error that
// plain bf16 arithmetic makes in the same case.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/bf16_exceptions.h"
#include "tests/cuda_helpers.h"

namespace linnet::test {

// As in the conformance suite: an error may be that many times the one of plain arithmetic.
inline constexpr double kTimesPlain = 3;
// Where plain arithmetic itself loses much (gradients that nearly cancel), it excuses no kernel:
// every kernel is known to stay below this, but for the exceptions.
inline constexpr double kMaxTolerance = 1e-2;

// Half an ulp of bf16 (8 significant bits) at the largest element of x, relative to it: between
// 2^-9 and 2^-8. 2^-8 where all are zero.
inline double half_ulp_of_bf16(const Tensor& x) {
  double scale = 0;
  for (const double value : x.to_vector<double>()) scale = std::max(scale, std::abs(value));
  return scale > 0 ? std::ldexp(1.0, std::ilogb(scale) - 8) / scale : 0x1p-8;
}

// The largest allowed error of a tensor, relative to the largest element of `exact`, the reference
// in double. `plain` is what plain arithmetic makes of the same inputs: the tested path of the CPU
// with sequences and their gradients stored in bf16; what that path keeps wider is rounded here.
// Where plain arithmetic happens to be exact (a few elements, values that are copied) another order
// of the same sums may still fall on the other side of a rounding: half an ulp remains. Where plain
// arithmetic fails (NaN, infinity) nothing passes.
inline double bf16_tolerance(const Tensor& plain, const Tensor& exact) {
  const double error = relative_error(plain.to(DType::bf16), exact);
  if (!std::isfinite(error)) return std::numeric_limits<double>::quiet_NaN();
  return std::min(std::max(kTimesPlain * error, half_ulp_of_bf16(exact)), kMaxTolerance);
}

// Whether got, result `index` of the running test, is as close to `exact` as `plain`
// asks, or within the bound of an exception (bf16_exceptions.h).
inline testing::AssertionResult close_in_bf16(const Tensor& got, const Tensor& exact,
                                              const Tensor& plain, size_t index) {
  const double error = relative_error(got, exact), derived = bf16_tolerance(plain, exact);
  const Bf16Exception* exception = bf16_exception_of_test(index);
  // NaN stays: nothing passes where plain arithmetic fails.
  const double allowed = exception != nullptr ? std::max(derived, exception->bound) : derived;
  if (error <= allowed) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "relative error " << error << ", allowed " << allowed << ", half an ulp "
         << half_ulp_of_bf16(exact) << (exception != nullptr ? ", although " : "")
         << (exception != nullptr ? exception->reason : "");
}

// Every result within its own tolerance.
inline void expect_close_in_bf16(const std::vector<Tensor>& got, const std::vector<Tensor>& exact,
                                 const std::vector<Tensor>& plain, const std::string& what = "") {
  ASSERT_EQ(got.size(), exact.size());
  ASSERT_EQ(plain.size(), exact.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(close_in_bf16(got[i], exact[i], plain[i], i)) << what << " result " << i;
  }
}

// The same in bf16, where plain() gives the results of plain arithmetic; in f32 errors of `single`,
// relative to the largest element, are allowed.
template <typename Plain>
void expect_close_in(DType dtype, const std::vector<Tensor>& got, const std::vector<Tensor>& exact,
                     double single, const Plain& plain, const std::string& what = "") {
  if (dtype == DType::bf16) return expect_close_in_bf16(got, exact, plain(), what);
  ASSERT_EQ(got.size(), exact.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(what + " result " + std::to_string(i));
    EXPECT_CLOSE(got[i], exact[i], single);
  }
}

}  // namespace linnet::test
