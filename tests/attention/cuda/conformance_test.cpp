// The conformance suite over the registry on the CUDA device: one test per mechanism and form.
#include "attention/conformance/conformance.h"
#include "attention/registry.h"

#include "tests/attention/cases.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

class CudaConformance : public testing::TestWithParam<test::MechanismForm> {};

TEST_P(CudaConformance, Holds) {
  const std::vector<CheckResult> results =
      run_conformance(find_mechanism(GetParam().mechanism), GetParam().form, test::kGpu);
  EXPECT_GE(results.size(), conformance_checks().size());
  for (const CheckResult& result : results) {
    EXPECT_TRUE(result.passed) << result.check << " of " << result.parameters << ": "
                               << result.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, CudaConformance, testing::ValuesIn(test::every_form()),
                         [](const auto& info) { return info.param.name("cuda"); });

}  // namespace
}  // namespace linnet
