// Machines on which nothing can run on a GPU are refused with what fixes it.
#include "core/cuda/refusals.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/cuda/backend.h"
#include "core/device.h"
#include "core/elementwise.h"
#include "core/tensor.h"

namespace linnet::cuda {
namespace {

// Devices are looked up once in a process: each of these pretends in one of its own.
[[noreturn]] void ask_for_device(const char* name) {
  try {
    device_from_name(name);
    std::_Exit(0);
  } catch (const UsageError& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(2);  // at once: what leaks at this end is not the question
  }
}

class CudaRefusals : public testing::Test {
 protected:
  void SetUp() override {
    if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs a pretended driver";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  void expect(const char* variable, const char* value, const char* message,
              const char* device = "cuda") {
    setenv(variable, value, 1);
    EXPECT_EXIT(ask_for_device(device), testing::ExitedWithCode(2), message);
    unsetenv(variable);
  }
};

TEST_F(CudaRefusals, NoDriver) {
  expect("LINNET_EMULATED_DRIVER", "0",
         "cuda:0 cannot be used: there is no NVIDIA driver; install one; use --device cpu");
}

TEST_F(CudaRefusals, DriverOlderThanTheToolkit) {
  expect("LINNET_EMULATED_DRIVER", "12040",
         "the NVIDIA driver supports CUDA 12.4 but linnet was built with CUDA 13.0; update the "
         "driver");
}

TEST_F(CudaRefusals, NoDevice) {
  expect("LINNET_EMULATED_DEVICES", "0", "the NVIDIA driver lists no GPU; look at nvidia-smi");
}

TEST_F(CudaRefusals, NumberThatNoDeviceHas) {
  expect("LINNET_EMULATED_DEVICES", "2",
         "device cuda:2 cannot be used: this machine has cuda:0 .emulated CUDA device on the CPU., "
         "cuda:1 .emulated CUDA device on the CPU.; use one of these, or --device cpu",
         "cuda:2");
}

TEST_F(CudaRefusals, DeviceWithoutBf16) {
  expect("LINNET_EMULATED_CAPABILITY", "75",
         "emulated CUDA device on the CPU has compute capability 7.5, linnet needs 8.0 for bf16; "
         "use --device cpu");
}

// Work on a tensor of another device than the one that this thread chose.
[[noreturn]] void add_on_second_device() {
  const Tensor there = Tensor::zeros({3}, DType::f32, {DeviceKind::cuda, 1});
  try {
    add_into(there, there);
    std::_Exit(0);
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(2);
  }
}

TEST_F(CudaRefusals, WorkThatGoesToAnotherDevice) {
  setenv("LINNET_EMULATED_DEVICES", "2", 1);
  EXPECT_EXIT(add_on_second_device(), testing::ExitedWithCode(2),
              "a tensor is on cuda:1 but this thread's work goes to cuda:0");
  unsetenv("LINNET_EMULATED_DEVICES");
}

TEST(CudaProblems, AreNoneWhereAllFits) {
  EXPECT_EQ(driver_problem(13000, 13010, 1), "") << "within a major version any driver will do";
  EXPECT_EQ(driver_problem(14000, 13010, 2), "");
  EXPECT_EQ(device_problem({"a GPU", 8, 0, 1, 1}), "");
  EXPECT_EQ(version_text(12040), "12.4");
}

}  // namespace
}  // namespace linnet::cuda
