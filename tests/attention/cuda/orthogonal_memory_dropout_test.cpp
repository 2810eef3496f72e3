// The orthogonal memory on tensor cores drops the weights that the CPU drops, in every scope, at
// the edges of chunks, with ranks that cut a draw's four weights among heads, and by the step that
// the device holds.
#include "attention/primitives/orthogonal_memory/cuda/fast.h"

#include <cstdlib>

#include "core/cuda/backend.h"
#include "tests/attention/cuda/orthogonal_memory_fast_inputs.h"

namespace linnet {
namespace {

using namespace test::orthogonal_memory_inputs;
using test::kGpu;

constexpr MemoryScope kWindows = MemoryScope::completed_windows, kPrefix = MemoryScope::prefix;
constexpr MemoryScope kWhole = MemoryScope::whole;

void expect_what_the_cpu_drops(Setting s) {
  s.dropout = 0.3;
  expect_what_the_cpu_computes(s, inputs_of(s));
}

TEST(CudaOrthogonalMemoryDropout, IsThatOfTheCpuCausally) {
  const std::vector<Setting> settings{
      {"a token more than a chunk", kWindows, 16, 1, 65, 2, 32, 32},
      {"the usual width", kWindows, 16, 1, 80, 2, 64, 64},
      {"windows that chunks cut", kWindows, 7, 2, 150, 2, 8, 16, false, true},
      {"with all", kWindows, 5, 3, 130, 2, 12, 24, true, true, true, {7, 10, 4}},
      {"ranks that cut fours", kWindows, 4, 2, 70, 4, 15, 16, true, false, true},
      {"wide heads", kWindows, 16, 1, 80, 2, 72, 128},
      {"wide heads, ranks that cut fours", kWindows, 9, 1, 70, 3, 113, 120, false, true},
      {"prefix with all", kPrefix, 0, 2, 130, 1, 32, 32, true, true, true},
  };
  for (const Setting& s : settings) expect_what_the_cpu_drops(s);
}

TEST(CudaOrthogonalMemoryDropout, IsThatOfTheCpuInWholeMemories) {
  Setting cross{"cross", kWhole, 0, 2, 70, 2, 12, 16};
  cross.source = 23;
  Setting encoded{"cross, encoded source", kWhole, 0, 2, 70, 3, 10, 40, true, false, true};
  encoded.source = 0;
  Setting runs{"runs, masks", kWhole, 0, 2, 9 * 64 + 5, 1, 8, 16, true, false, true};
  Setting segments{"segments", kWhole, 0, 2, 150, 2, 12, 16, true, true, true};
  for (const Setting& s : {cross, encoded, runs, segments,
                           Setting{"wide heads", kWhole, 0, 1, 80, 2, 128, 128, false, true}}) {
    expect_what_the_cpu_drops(s);
  }
}

// Where a block has 163 KiB (compute capability 8.0), backward of wide heads has one stage.
TEST(CudaOrthogonalMemoryDropout, WideHeadsDropWithOneStage) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  setenv("LINNET_EMULATED_CAPABILITY", "80", 1);
  expect_what_the_cpu_drops({"one stage", kWindows, 16, 1, 140, 2, 72, 128, false, true});
  unsetenv("LINNET_EMULATED_CAPABILITY");
}

// A basis of unit vectors shows every weight in y, and in dq its gradient; the step is found in
// device memory, as where a captured graph is replayed.
TEST(CudaOrthogonalMemoryDropout, DropsBitForBitByTheStepOnTheDevice) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Tensor step = Tensor::full({}, 8, DType::i64, kGpu);
  for (const int64_t rank : {16, 30, 64, 127}) {
    Setting s{"", kPrefix, 0, 2, 70, 3, rank, (rank + 7) / 8 * 8};
    s.dropout = 0.5;
    std::vector<Tensor> in = inputs_of(s);
    in[2].fill(0);
    for (int64_t i = 0; i < s.H * s.r; ++i) in[2].data<double>()[i * s.d + i % s.r] = 1;
    for (int64_t i = 0; i < in[1].elements(); ++i) {
      in[1].data<double>()[i] = 1 + std::abs(in[1].data<double>()[i]);
    }
    in[1] = in[1].to(DType::bf16).to(DType::f64);
    OrthogonalMemoryContext context = context_of(s, kGpu);
    context.options.dropout_key.step = 0;
    context.options.dropout_key.device_step = static_cast<const uint64_t*>(step.raw());
    const Outcome expected = run(s, in, Device{}), got = run(s, in, kGpu, context);
    const auto weights = got.values[0].to(Device{}).to_vector<double>();
    const auto exact = expected.values[0].to_vector<double>();
    int64_t kept = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_EQ(weights[i] == 0, exact[i] == 0) << rank << " " << i;
      kept += weights[i] == 0 ? 0 : 1;
    }
    const int64_t all = s.B * s.T * s.H * s.r;
    EXPECT_NEAR(static_cast<double>(2 * kept) / static_cast<double>(all), 1, 0.1);
    test::expect_close_in_bf16(got.values, expected.values, run_plainly(s, in));
  }
}

}  // namespace
}  // namespace linnet
