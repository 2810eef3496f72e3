// Slot attention takes the kernels on tensor cores where they cover a call, and says why where not.
#include "attention/primitives/slot_attention/cuda/path.h"

#include <cstdlib>

#include "attention/primitives/slot_attention/slot_attention.h"
#include "attention/registry.h"
#include "core/cuda/backend.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "core/yaml.h"
#include "layers/model.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;

SlotAttentionTensors tensors_of(int64_t T, int64_t N, int64_t K, int64_t V,
                                DType dtype = DType::bf16) {
  SlotAttentionTensors in;
  in.q = in.k = Tensor::zeros({1, T, 1, K}, dtype, kGpu);
  in.v = Tensor::zeros({1, T, 1, V}, dtype, kGpu);
  in.logits = Tensor::zeros({1, T, 1, N}, dtype, kGpu);
  return in;
}

TEST(CudaSlotAttentionPath, WhatItDoesNotCoverGoesToThePlainKernels) {
  const auto why = [](const SlotAttentionTensors& in, const SlotAttentionContext& context) {
    return cuda::why_plain_slot_attention(context, in);
  };
  const SlotAttentionTensors usual = tensors_of(16, 8, 16, 16);
  EXPECT_EQ(why(usual, {}), "");
  EXPECT_EQ(why(tensors_of(40, 64, 128, 256), {}), "");
  EXPECT_EQ(why(tensors_of(16, 8, 136, 8), {}), "8 slots with keys of 136 and values of 8");
  EXPECT_EQ(why(tensors_of(16, 8, 16, 16, DType::f32), {}), "values of f32");
  SlotAttentionTensors mixed = usual;
  mixed.logits = mixed.logits.to(DType::f32);
  EXPECT_EQ(why(mixed, {}), "values of f32");
  EXPECT_EQ(why(tensors_of(16, 512, 16, 16), {}), "");
  EXPECT_EQ(why(tensors_of(16, 520, 16, 16), {}), "520 slots with keys of 16 and values of 16");
  EXPECT_EQ(why(tensors_of(16, 8, 20, 16), {}), "8 slots with keys of 20 and values of 16");
  EXPECT_EQ(why(tensors_of(16, 8, 16, 12), {}), "8 slots with keys of 16 and values of 12");
  EXPECT_EQ(why(tensors_of(15, 8, 16, 16), {}), "fewer than 16 tokens");
  SlotAttentionTensors other = usual;
  other.q = Tensor::zeros({16 * 16 + 1}, DType::bf16, kGpu).slice(1, {1, 16, 1, 16});
  EXPECT_EQ(why(other, {}), "tensors that do not begin on 16 bytes");
  SlotAttentionContext context;
  context.options.control = SlotControl::sigmoid;
  EXPECT_EQ(why(usual, context), "weights that are a sigmoid or relu of logits");
  context = {};
  for (const double scale : {0.0, -0.5}) {
    context.options.scale = scale;
    EXPECT_EQ(why(usual, context), "a scale of 0 or less");
  }
  context.options.scale = 1;
  context.options.dropout = 0.1;
  EXPECT_EQ(why(usual, context), "");
  context.options.control = SlotControl::relu;
  EXPECT_TRUE(cuda::slot_attention_is_fast({}, usual));
  EXPECT_FALSE(cuda::slot_attention_is_fast(context, usual));
  EXPECT_FALSE(cuda::slot_attention_is_fast({}, tensors_of(15, 8, 16, 16)));
  const UseKernels plain(KernelChoice::plain, kGpu);
  EXPECT_FALSE(cuda::slot_attention_is_fast({}, usual));
}

TEST(CudaSlotAttentionPath, GivenWeights) {
  for (const SlotNormalizer normalizer : {SlotNormalizer::read_time, SlotNormalizer::none}) {
    SlotAttentionContext context;
    context.options.control = SlotControl::given;
    context.options.normalizer = normalizer;
    const auto why = [&](const SlotAttentionTensors& in) {
      return cuda::why_plain_slot_attention(context, in);
    };
    EXPECT_EQ(why(tensors_of(16, 512, 64, 64)), "");
    EXPECT_EQ(why(tensors_of(16, 8, 72, 8)), "8 given slots with keys of 72 and values of 8");
    EXPECT_EQ(why(tensors_of(16, 8, 8, 72)), "8 given slots with keys of 8 and values of 72");
    EXPECT_EQ(why(tensors_of(16, 12, 16, 16)), "12 given slots with keys of 16 and values of 16");
    EXPECT_EQ(why(tensors_of(16, 8, 16, 0)), "8 given slots with keys of 16 and values of 0");
    SlotAttentionTensors written = tensors_of(16, 8, 16, 0);
    written.q = {};
    EXPECT_EQ(why(written), "");
    SlotAttentionTensors apart = tensors_of(16, 8, 16, 16);
    apart.value_logits = apart.logits;
    EXPECT_EQ(why(apart), "values with weights of their own");
  }
}

// Mechanisms whose weights are choices or projections make them in bf16, so that models in bf16
// have them on tensor cores, forward and backward.
TEST(CudaSlotAttentionPath, MechanismsOfGivenWeightsTakeTensorCores) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  for (const bool causal : {false, true}) {
    for (const auto& [name, options] : std::vector<std::pair<std::string, std::string>>{
             {"linformer", "{slots: 8}"},
             {"linformer", "{slots: 8, sharing: key_value_per_head, freeze: true}"},
             {"linformer", "{slots: 8, sharing: headwise}"},
             {"abc_random", "{slots: 8}"},
             {"abc_random", "{slots: 8, pool: mean}"},
             {"abc_cluster", "{slots: 8}"},
             {"abc_l2g", "{slots: 8}"},
             {"abc_compressive", "{slots: 8, divide_by: tokens}"}}) {
      const Mechanism& mechanism = find_mechanism(name);
      const ConfigNode parameters = parse_yaml(options, "test");
      if (causal && !mechanism.traits_of(parameters).causal) continue;
      SCOPED_TRACE(concat(name, " ", options, causal ? ", causal" : ""));
      ModelConfig config;
      config.layers = 1;
      config.width = 16;
      config.heads = 1;
      config.feed_forward_width = 16;
      config.kind = causal ? "decoder" : "encoder";
      Transformer model(config, {11, 16}, [&](const MixerOptions& of, const MixerScope& scope) {
        return mechanism.make(parameters, of, scope);
      });
      model.parameters().materialize(3, DType::f32, DType::bf16, kGpu);
      ModelInput input;
      input.tokens = Tensor::zeros({1, 16}, DType::i32, kGpu);
      EXPECT_EQ(test::message_of<UsageError>([&] {
                  const Variable y = model.encode(input, nullptr);
                  backward({y}, {Tensor::full(y.shape(), 1, y.dtype(), kGpu)});
                }),
                "");
    }
  }
}

// Backend tensor_cores, for forward and backward passes and for other forms; decoding
// token by token is left to the plain kernels.
TEST(CudaSlotAttentionPath, DemandedTensorCoresRefuseWhatTheyDoNotCover) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const auto causal = [](int64_t T, int64_t V, DType dtype = DType::bf16) {
    const SlotAttentionTensors in = tensors_of(T, 8, 16, V, dtype);
    return slot_attention_causal(
               {Variable(in.q, true), Variable(in.k), Variable(in.v), Variable(in.logits)}, {})
        .o;
  };
  const auto refusal = [](const auto& body) { return test::message_of<UsageError>(body); };
  EXPECT_EQ(refusal([&] { causal(16, 16, DType::f32); }),
            "slot attention: backend tensor_cores was requested, but the kernels on tensor cores "
            "do not cover values of f32; use backend auto");
  EXPECT_NE(refusal([&] {
              const Variable x(tensors_of(16, 8, 16, 16).q);
              SlotAttentionContext context;
              context.options.control = SlotControl::sigmoid;
              slot_attention_memory({{}, x, x, x}, context);
            }).find("do not cover weights that are a sigmoid or relu of logits"),
            std::string::npos);
  EXPECT_EQ(causal(1, 16).size(1), 1);
  EXPECT_EQ(causal(15, 19, DType::f32).size(1), 15);
}

TEST(CudaSlotAttentionPath, WhatItDoesNotCoverIsSaidOnce) {
  // A line that was logged once is not logged again when the test is repeated.
  static int64_t width = 19;
  width += 2;
  const SlotAttentionTensors in = tensors_of(17, 8, width, 8);
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(cuda::slot_attention_is_fast({}, in));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string said = concat("do not cover 8 slots with keys of ", width, " and values of 8");
  const size_t first = log.find(said);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(said, first + 1), std::string::npos) << log;
}

// Heads of 64 take 101 KiB of a block's shared memory.
TEST(CudaSlotAttentionPath, SmallSharedMemoryTakesThePlainKernels) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended GPU";
  const SlotAttentionTensors in = tensors_of(20, 8, 64, 16);
  EXPECT_EQ(cuda::why_plain_slot_attention({}, in), "");
  setenv("LINNET_EMULATED_CAPABILITY", "86", 1);
  const std::string reason = cuda::why_plain_slot_attention({}, in);
  SlotAttentionContext given;
  given.options.control = SlotControl::given;
  const std::string of_given = cuda::why_plain_slot_attention(given, tensors_of(20, 8, 16, 16));
  unsetenv("LINNET_EMULATED_CAPABILITY");
  EXPECT_EQ(of_given,
            "given weights on a GPU with 99 KiB of shared memory a block (they take 101)");
  EXPECT_EQ(reason, "keys of 64 on a GPU with 99 KiB of shared memory a block (they take 101)");
}

}  // namespace
}  // namespace linnet
