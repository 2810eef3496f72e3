// The lines in the log about calls that go to the plain kernels, and when they appear.
#include "attention/primitives/common/cuda/kernel_path.h"

#include "attention/registry.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "core/yaml.h"
#include "layers/model.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;

// The log of two calls about values of that dtype.
std::string said_of(const std::string& operation, DType dtype, int64_t tokens = 16) {
  const Tensor x = Tensor::zeros({1, tokens, 1, 8}, dtype, kGpu);
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    cuda::takes_fast_kernels(operation, x, [&] { return cuda::unsupported_dtype({&x}); });
  }
  return testing::internal::GetCapturedStderr();
}

TEST(CudaFallBack, CallsInF32AreNamedOnceInAModelInBf16Alone) {
  // A line that was logged once is not logged again when the test is repeated.
  static int number = 0;
  const std::string operation = concat("operation ", ++number);
  EXPECT_EQ(said_of(operation, DType::f32), "");
  {
    const ActivationsIn f32(DType::f32);
    EXPECT_EQ(said_of(operation, DType::f32), "");
  }
  const ActivationsIn bf16(DType::bf16);
  EXPECT_EQ(said_of(operation, DType::bf16), "");
  EXPECT_EQ(said_of(operation, DType::f32, 15), "");
  {
    const UseKernels plain(KernelChoice::plain, kGpu);
    EXPECT_EQ(said_of(operation, DType::f32), "");
  }
  const std::string log = said_of(operation, DType::f32);
  const std::string said = concat(operation,
                                  " runs on its plain kernels: the kernels on tensor cores do not "
                                  "cover values of f32, which the mechanism makes of activations "
                                  "in bf16\n");
  const size_t first = log.find(said);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(said, first + 1), std::string::npos) << log;
}

// RoPE linear attention makes features in f32 of activations in bf16.
TEST(CudaFallBack, ModelsSayWhatTheyComputeIn) {
  ModelConfig config;
  config.layers = 1;
  config.width = 16;
  config.heads = 1;
  config.feed_forward_width = 16;
  const auto refusal = [&](DType dtype) {
    Transformer model(config, {11, 16}, [](const MixerOptions& options, const MixerScope& scope) {
      return find_mechanism("rope_linear").make(parse_yaml("{}", "test"), options, scope);
    });
    model.parameters().materialize(3, DType::f32, dtype, kGpu);
    ModelInput input;
    input.tokens = Tensor::zeros({1, 16}, DType::i32, kGpu);
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    return test::message_of<UsageError>([&] { model.encode(input, nullptr); });
  };
  EXPECT_NE(refusal(DType::bf16).find("f32, which the mechanism makes of activations in bf16;"),
            std::string::npos);
  EXPECT_NE(refusal(DType::f32).find("values of f32;"), std::string::npos);
}

}  // namespace
}  // namespace linnet
