// The conformance suite over the registry: one test per mechanism, form and device.
#include "attention/conformance/conformance.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include <limits>

#include "attention/conformance/subject.h"
#include "tests/attention/cases.h"
#include "tests/worst.h"

namespace linnet {
namespace {

class Conformance : public testing::TestWithParam<test::MechanismForm> {};

TEST_P(Conformance, Holds) {
  const std::vector<CheckResult> results =
      run_conformance(find_mechanism(GetParam().mechanism), GetParam().form);
  EXPECT_GE(results.size(), conformance_checks().size());
  for (const CheckResult& result : results) {
    EXPECT_TRUE(result.passed) << result.check << " of " << result.parameters << ": "
                               << result.message;
  }
}

// A NaN must not be forgotten when finite values follow it.
TEST(LargestError, KeepsNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor values = Tensor::from(std::vector<double>{1, nan, 2}, {3});
  const Tensor zeros = Tensor::zeros({3}, DType::f64);
  EXPECT_FALSE(std::isfinite(conformance::largest_magnitude(values)));
  EXPECT_FALSE(std::isfinite(conformance::largest_difference(values, zeros)));
  double worst = 0;
  for (const double error : {1.0, nan, 2.0}) test::keep_worst(worst, error);
  EXPECT_TRUE(std::isnan(worst));
}

INSTANTIATE_TEST_SUITE_P(Registry, Conformance, testing::ValuesIn(test::every_form()),
                         [](const auto& info) { return info.param.name("cpu"); });

}  // namespace
}  // namespace linnet
