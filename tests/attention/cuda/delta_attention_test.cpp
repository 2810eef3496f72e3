// The delta rule on the CUDA device against the CPU's double precision: result, state and every
// gradient.
#include "attention/common/token_slices.h"
#include "core/error.h"
#include "core/kernel_choice.h"
#include "tests/attention/delta_attention_case.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::DeltaCase;

void expect_equal(const DeltaCase& at) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> expected = at.results(dtype, DType::f64);
    const std::vector<Tensor> got = at.results(dtype, dtype, test::kGpu);
    test::expect_close_in(
        dtype, got, expected, 4e-6, [&] { return at.results(dtype, dtype); },
        concat(at.label(), ", ", name_of(dtype)));
  }
}

TEST(CudaDeltaAttention, IsThatOfTheCpu) {
  for (const DeltaCase& at : test::delta_cases()) expect_equal(at);
}

// More rows than a block has threads for a column, and several blocks of columns.
TEST(CudaDeltaAttention, WideHeads) {
  expect_equal({{1, 5, 4, false, false, 0}, 1, 256, 40});
  expect_equal({{1, 5, 0, false, false, 0}, 1, 8, 300, false});
}

TEST(CudaDeltaAttention, EverythingMayBeForgotten) {
  const DeltaCase at{{1, 20, 4, false, false, 0}, 1, 4, 4, true, 1e6};
  const std::vector<Tensor> expected = at.results(DType::f32, DType::f64);
  const std::vector<Tensor> got = at.results(DType::f32, DType::f32, test::kGpu);
  for (size_t i = 0; i < got.size(); ++i) {
    // Gradients of log-decays are 0 here, and sums of terms of about 1 that cancel.
    EXPECT_TRUE(test::close(got[i].to(DType::f64), expected[i], 4e-6, 4e-6)) << i;
  }
}

TEST(CudaDeltaAttention, SameBitsInEveryRun) {
  const DeltaCase at{{2, 70, 4, true, true, 0}, 2, 16, 24};
  const std::vector<Tensor> once = at.results(DType::f32, DType::f32, test::kGpu);
  const std::vector<Tensor> again = at.results(DType::f32, DType::f32, test::kGpu);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i])) << i;
}

// A decode state that goes from token to token gives the sequence.
TEST(CudaDeltaAttention, TokenByTokenIsTheSequence) {
  const DeltaCase at{{2, 7, 4, false, false, 0}, 2, 16, 24};
  std::vector<Variable> in;
  for (const Tensor& x : at.inputs()) in.emplace_back(x.to(DType::f32).to(test::kGpu));
  const DeltaAttentionContext context{{}, {}, 0.7};
  const DeltaAttentionResult whole =
      delta_attention({in[0], in[1], in[2], in[3], in[4]}, context, in[5]);
  Variable state = in[5];
  for (int64_t t = 0; t < 7; ++t) {
    const auto now = [&](size_t i) { return Variable(tokens_of(in[i].value(), t, t + 1)); };
    const DeltaAttentionResult found =
        delta_attention({now(0), now(1), now(2), now(3), now(4)}, context, state);
    EXPECT_TRUE(test::same_bits(found.y.value().to(Device{}),
                                tokens_of(whole.y.value(), t, t + 1).to(Device{})));
    state = found.state;
  }
  EXPECT_TRUE(test::same_bits(state.value().to(Device{}), whole.state.value().to(Device{})));
}

TEST(CudaDeltaAttention, WhatNoKernelTakesIsRefused) {
  EXPECT_NE(test::message_of<Error>([] {
              DeltaCase{{1, 4, 0, false, false, 0}}.results(DType::f64, DType::f64, test::kGpu);
            }).find("use --device cpu"),
            std::string::npos);
  EXPECT_NE(test::message_of<Error>([] {
              DeltaCase{{1, 2, 0, false, false, 0}, 1, 513, 2}.results(DType::f32, DType::f32,
                                                                       test::kGpu);
            }).find("1 to 512 elements, got 513"),
            std::string::npos);
}

TEST(CudaDeltaAttention, IsRefusedWhereTensorCoresAreDemanded) {
  const UseKernels demand(KernelChoice::tensor_cores, test::kGpu);
  EXPECT_NE(test::message_of<UsageError>([] {
              DeltaCase{{1, 40, 0, false, false, 0}}.results(DType::bf16, DType::bf16, test::kGpu);
            }).find("delta attention"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
