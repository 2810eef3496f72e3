// The conformance suite over the registry on the CUDA device: one test per mechanism and form.
#include "attention/conformance.h"

#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

struct Case {
  std::string mechanism;
  Form form;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.mechanism << " " << name_of(c.form);
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Mechanism& mechanism : mechanisms()) {
    for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
      if (mechanism.traits.has(form)) list.push_back({mechanism.name, form});
    }
  }
  return list;
}

class CudaConformance : public testing::TestWithParam<Case> {};

TEST_P(CudaConformance, Holds) {
  const std::vector<CheckResult> results =
      run_conformance(find_mechanism(GetParam().mechanism), GetParam().form, test::kGpu);
  EXPECT_GE(results.size(), conformance_checks().size());
  for (const CheckResult& result : results) {
    EXPECT_TRUE(result.passed) << result.check << " of " << result.parameters << ": "
                               << result.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, CudaConformance, testing::ValuesIn(cases()),
                         [](const auto& info) {
                           return info.param.mechanism + "_" +
                                  std::string(name_of(info.param.form)) + "_cuda";
                         });

}  // namespace
}  // namespace linnet
