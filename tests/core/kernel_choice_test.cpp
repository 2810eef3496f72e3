// Which kernels a thread's calls take.
#include "core/kernel_choice.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr Device kSomeGpu{DeviceKind::cuda, 0};

TEST(KernelChoices, HaveNames) {
  EXPECT_EQ(kernel_choice_from_name("auto"), KernelChoice::automatic);
  EXPECT_EQ(kernel_choice_from_name("plain"), KernelChoice::plain);
  EXPECT_EQ(kernel_choice_from_name("tensor_cores"), KernelChoice::tensor_cores);
  EXPECT_EQ(test::message_of<UsageError>([] { kernel_choice_from_name("fast"); }),
            "unknown backend 'fast'; expected auto, plain or tensor_cores");
}

TEST(KernelChoices, AreOfTheThreadUntilTheirScopeEnds) {
  EXPECT_EQ(kernel_choice(), KernelChoice::automatic);
  {
    const UseKernels plain(KernelChoice::plain, Device{});
    {
      const UseKernels fast(KernelChoice::tensor_cores, kSomeGpu);
      EXPECT_EQ(kernel_choice(), KernelChoice::tensor_cores);
      KernelChoice elsewhere = KernelChoice::plain;
      std::thread([&] { elsewhere = kernel_choice(); }).join();
      EXPECT_EQ(elsewhere, KernelChoice::automatic);
    }
    EXPECT_EQ(kernel_choice(), KernelChoice::plain);
  }
  EXPECT_EQ(kernel_choice(), KernelChoice::automatic);
}

TEST(KernelChoices, TellWhatTheModelComputesIn) {
  EXPECT_EQ(activation_dtype(), DType::f32);
  {
    const ActivationsIn bf16(DType::bf16);
    EXPECT_EQ(activation_dtype(), DType::bf16);
    DType elsewhere = DType::bf16;
    std::thread([&] { elsewhere = activation_dtype(); }).join();
    EXPECT_EQ(elsewhere, DType::f32);
  }
  EXPECT_EQ(activation_dtype(), DType::f32);
}

TEST(KernelChoices, TensorCoresAndCudnnNeedAGpu) {
  EXPECT_EQ(test::message_of<UsageError>(
                [] { const UseKernels use(KernelChoice::tensor_cores, Device{}); }),
            "backend tensor_cores needs a CUDA device, and this runs on cpu; use --device cuda, or "
            "backend auto");
  EXPECT_EQ(
      test::message_of<UsageError>([] { const UseKernels use(KernelChoice::cudnn, Device{}); }),
      "backend cudnn needs a CUDA device, and this runs on cpu; use --device cuda, or "
      "backend auto");
  EXPECT_EQ(kernel_choice(), KernelChoice::automatic);
  // On the CPU there are no others: nothing falls back.
  const UseKernels use(KernelChoice::tensor_cores, kSomeGpu);
  require_plain_allowed("anything", Tensor::zeros({1, 64}));
}

}  // namespace
}  // namespace linnet
