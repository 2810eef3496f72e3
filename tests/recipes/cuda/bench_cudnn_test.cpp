// Softmax attention by cuDNN in `linnet bench attention`: refused by name where it cannot be; on a
// GPU it agrees with linnet's own, without which it is not timed.
#include <gtest/gtest.h>

#include "core/cuda/backend.h"
#include "core/cuda/cudnn.h"
#include "recipes/engine/bench/attention.h"
#include "recipes/engine/bench/cuda/bench_cudnn.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

AttentionBenchOptions options_for(DType dtype) {
  AttentionBenchOptions options;
  options.mechanisms = {"softmax"};
  options.cudnn = true;
  options.lengths = {kCudaBackend == CudaBackend::emulated ? 24 : 200};
  options.runs = 1;
  options.dtype = dtype;
  options.device = test::kGpu;
  return options;
}

TEST(CudnnSoftmax, IsRefusedByName) {
  EXPECT_EQ(test::message_of<UsageError>([] { bench_attention(options_for(DType::f32)); }),
            "--cudnn measures bf16; add --dtype bf16");
  const std::string problem = cuda::cudnn_problem();
  if (problem.empty()) GTEST_SKIP() << "cuDNN " << cuda::cudnn_version() << " is here";
  EXPECT_EQ(test::message_of<UsageError>([] { bench_attention(options_for(DType::bf16)); }),
            "--cudnn: " + problem);
}

TEST(CudnnSoftmax, AgreesWithLinnet) {
  if (!cuda::cudnn_problem().empty()) GTEST_SKIP() << cuda::cudnn_problem();
  AttentionBenchOptions options = options_for(DType::bf16);
  for (const Form form : {Form::causal, Form::noncausal}) {
    for (const int64_t width : {64, 128}) {
      options.form = form;
      options.head_width = width;
      const std::vector<OperationBench> points = bench_attention(options);
      ASSERT_EQ(points.size(), 2U);
      EXPECT_EQ(points[1].mechanism, kCudnnSoftmax);
      EXPECT_EQ(points[1].multiply_adds, points[0].multiply_adds);
      EXPECT_GT(points[1].forward.median, 0);
    }
  }
}

}  // namespace
}  // namespace linnet
