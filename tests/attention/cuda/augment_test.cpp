// An augmented mechanism on the device.
#include "attention/conformance/conformance.h"
#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

TEST(CudaAugment, AnAugmentedHostPassesTheSuite) {
  for (const CheckResult& result :
       run_conformance(find_mechanism("linear"), Form::causal,
                       parse_yaml("{augment: {conv: 5, local: 7}}", "parameters"), test::kGpu)) {
    EXPECT_TRUE(result.passed) << result.check << ": " << result.message;
  }
}

}  // namespace
}  // namespace linnet
