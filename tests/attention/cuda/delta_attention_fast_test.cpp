// The delta rule on tensor cores against the CPU's double precision: result, state and every
// gradient.
#include "core/error.h"
#include "core/kernel_choice.h"
#include "tests/attention/delta_attention_case.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::DeltaCase;
using test::kGpu;

void expect_close(const DeltaCase& at) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> got = at.results(DType::bf16, DType::bf16, kGpu);
  test::expect_close_in_bf16(got, at.results(DType::bf16, DType::f64),
                             at.results(DType::bf16, DType::bf16), at.label());
}

TEST(CudaDeltaAttentionFast, GivesWhatTheCpuComputesInDouble) {
  for (const DeltaCase& at :
       std::vector<DeltaCase>{{{1, 64, 0}, 1, 64, 64, false},  // two chunks, one group
                              {{1, 16, 4}, 2, 64, 64},
                              {{2, 33, 4}, 1, 16, 32},  // a token more than a chunk
                              {{1, 65, 0}, 1, 32, 16, false},
                              {{2, 100, 4}, 2, 64, 40},
                              {{1, 95, 0}, 3, 8, 8},
                              {{2, 191, 4}, 1, 24, 64, true, 0.02}}) {
    expect_close(at);
  }
}

TEST(CudaDeltaAttentionFast, MaskedTokensAndDocuments) {
  for (const bool decays : {false, true}) {
    expect_close({{2, 70, 4, true, false}, 2, 32, 32, decays});
    expect_close({{2, 129, 4, false, true}, 1, 64, 64, decays});
    expect_close({{2, 45, 0, true, true}, 2, 16, 8, decays});
  }
}

// Gradients of log-decays are sums over all that comes later: after many tokens they are as exact
// as at the beginning.
TEST(CudaDeltaAttentionFast, LongSequences) {
  expect_close({{1, 700, 4}, 1, 16, 16, true, 0.004});
  expect_close({{1, 515, 0}, 1, 64, 64, false});
  expect_close({{1, 530, 4, true, true}, 1, 16, 16, true, 2});
}

TEST(CudaDeltaAttentionFast, EverythingMayBeForgotten) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const DeltaCase at{{1, 100, 4}, 1, 16, 16, true, 1e6};
  const std::vector<Tensor> got = at.results(DType::bf16, DType::bf16, kGpu);
  const std::vector<Tensor> exact = at.results(DType::bf16, DType::f64);
  const std::vector<Tensor> plain = at.results(DType::bf16, DType::bf16);
  for (size_t i = 0; i < got.size(); ++i) {
    if (i == 6) {  // gradients of log-decays are 0 here, up to rounding of f32
      for (const double x : got[i].to_vector<double>()) EXPECT_NEAR(x, 0, 1e-6) << i;
    } else {
      EXPECT_TRUE(test::close_in_bf16(got[i], exact[i], plain[i], i)) << i;
    }
  }
}

TEST(CudaDeltaAttentionFast, SameBitsInEveryRun) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const DeltaCase at{{2, 70, 4, true, true}, 2, 16, 24};
  const std::vector<Tensor> once = at.results(DType::bf16, DType::bf16, kGpu);
  const std::vector<Tensor> again = at.results(DType::bf16, DType::bf16, kGpu);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i])) << i;
}

TEST(CudaDeltaAttentionFast, WidthsWithoutKernelsAreNamed) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  EXPECT_NE(test::message_of<UsageError>([] {
              DeltaCase{{1, 40, 0}, 1, 72, 64}.results(DType::bf16, DType::bf16, kGpu);
            }).find("do not cover keys of 72 and values of 64 elements"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
