// Plans by cuDNN without a GPU: kernels are found and compiled for devices that are only described.
#include "core/cuda/cudnn.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "attention/primitives/cudnn_softmax/cuda/softmax_graph.h"
#include "core/cuda/backend.h"
#include "tests/cuda_helpers.h"

namespace linnet::cuda {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;

// cuDNN's descriptions of an H100 and an A100 (80 GB each), but for the clocks' last digits.
std::string described(bool hopper) {
  return concat(
      R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], )",
      R"("regsPerBlock": 65536, "warpSize": 32, "maxSharedMemoryPerBlock": 49152, )",
      R"("reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, )",
      R"("maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, )",
      R"("supportCoopLaunch": 1, "totalGlobalMem": 85000000000, "cudaDeviceId": 0, )",
      R"("driverVer": 13000, "multiProcessorCount": )", hopper ? 132 : 108,
      R"(, "maxSharedMemoryPerBlockOptin": )", hopper ? 232448 : 166912, R"(, "smClockRateKHz": )",
      hopper ? 1980000 : 1410000, R"(, "memClockRateKHz": )", hopper ? 2619000 : 1593000,
      R"(, "l2CacheSize": )", hopper ? 52428800 : 41943040, R"(, "deviceVer": )",
      hopper ? 900 : 800, R"(, "deviceName": ")",
      hopper ? "NVIDIA H100 80GB HBM3" : "NVIDIA A100-SXM4-80GB", "\"}");
}

TEST(CudnnPlans, AreRefusedWhereThereIsNoCudnn) {
  const std::string problem = cudnn_problem();
  if (problem.empty()) GTEST_SKIP() << "cuDNN " << cudnn_version() << " is here";
  EXPECT_EQ(cudnn_version(), "");
  EXPECT_EQ(test::message_of<UsageError>([] { const GraphPlan plan({}); }), problem);
}

// Of the device's stand-in too: tensors that do not fit are refused by number.
TEST(CudnnPlans, WantEveryTensorAsTheGraphHasIt) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs an emulated device";
  const SoftmaxForwardGraph graph = softmax_forward_graph({1, 16, 1, 8, true});
  const GraphPlan plan(graph.graph);
  const Tensor x = Tensor::zeros({1, 16, 1, 8}, DType::bf16, test::kGpu);
  const Tensor rows = Tensor::zeros({1, 1, 16}, DType::f32, test::kGpu);
  const auto run = [&](const Tensor& q, const std::optional<Tensor>& log_sum_exp) {
    std::vector<std::pair<int, Tensor>> tensors{
        {graph.q, q}, {graph.k, x}, {graph.v, x}, {graph.y, x.clone()}};
    if (log_sum_exp) tensors.emplace_back(graph.log_sum_exp, *log_sum_exp);
    return test::message_of<Error>([&] { plan.run(tensors); });
  };
  EXPECT_EQ(run(x, rows), "");
  EXPECT_THAT(run(x.to(DType::f32), rows), HasSubstr("tensor 0 of the graph cannot be"));
  EXPECT_THAT(run(x, {}), HasSubstr("of the graph is missing"));
}

// Engines that fuse the graph are found, and their kernels compiled. Loading one into a driver that
// has no such GPU is what may fail then.
TEST(CudnnPlans, AreFoundForDescribedDevices) {
  if (kCudaBackend != CudaBackend::on) GTEST_SKIP() << "cuDNN is emulated";
  if (!cudnn_problem().empty()) GTEST_SKIP() << cudnn_problem();
  // Where there is no driver, the toolkit's stub of one lets cuDNN compile.
  if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr &&
      dlopen(LINNET_CUDA_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    GTEST_SKIP() << "neither a driver nor " << LINNET_CUDA_DRIVER_STUB;
  }
  const auto failure_of = [](const OperationGraph& graph, bool hopper) {
    return test::message_of<Error>([&] { const GraphPlan plan(graph, described(hopper)); });
  };
  const auto found =
      AnyOf(IsEmpty(), HasSubstr("cuLibraryLoadData"), HasSubstr("cuLibraryGetKernel"));
  for (const bool hopper : {true, false}) {
    const SoftmaxSizes causal{2, 4096, 12, 64, true}, noncausal{1, 200, 8, 128, false};
    EXPECT_THAT(failure_of(softmax_forward_graph(causal).graph, hopper), found);
    EXPECT_THAT(failure_of(softmax_backward_graph(causal).graph, hopper), found);
    EXPECT_THAT(failure_of(softmax_forward_graph(noncausal).graph, hopper), found);
    EXPECT_THAT(failure_of(softmax_backward_graph(noncausal).graph, hopper), found);
    // What training takes.
    for (SoftmaxSizes trained : {causal, noncausal}) {
      trained.deterministic = true;
      EXPECT_THAT(failure_of(softmax_backward_graph(trained).graph, hopper), found);
    }
  }
  // That this can fail: no kernel of cuDNN takes heads of 20 channels.
  EXPECT_THAT(failure_of(softmax_backward_graph({1, 64, 1, 20, true}).graph, true),
              HasSubstr("has no kernel for this graph"));
}

}  // namespace
}  // namespace linnet::cuda
