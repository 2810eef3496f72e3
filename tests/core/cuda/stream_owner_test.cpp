// One thread submits to a device's stream, until it hands the stream over.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;

// What another thread's submission throws; "" where it is done.
template <typename Work>
std::string refusal_elsewhere(const Work& work) {
  std::string refusal;
  std::thread([&] {
    try {
      work();
    } catch (const Error& error) {
      refusal = error.what();
    }
  }).join();
  return refusal;
}

constexpr const char* kRefusal =
    "CUDA: this thread submits work to cuda:0, whose stream belongs to another thread; that one "
    "must call cuda::hand_over_stream() first";

TEST(CudaStreamOwner, AnotherThreadIsRefused) {
  const Tensor y = Tensor::zeros({3}, DType::f32, kGpu);
  EXPECT_EQ(refusal_elsewhere([&] { y.fill(1); }), kRefusal);
  EXPECT_EQ(refusal_elsewhere([&] { y.to_vector<float>(); }), kRefusal);
  EXPECT_EQ(refusal_elsewhere([&] { y.copy_from(Tensor::full({3}, 1)); }), kRefusal);
  EXPECT_EQ(refusal_elsewhere([] { Tensor::zeros({3}, DType::f32, kGpu); }), kRefusal);
  EXPECT_EQ(refusal_elsewhere([] { device_interface(kGpu).synchronize(); }), kRefusal);
  const cuda::Graph graph(cuda::make_graph_memory(0), [&] {
    EXPECT_EQ(refusal_elsewhere([&] { y.fill(1); }), kRefusal);
    y.fill(2);
  });
  EXPECT_EQ(graph.operations(), 1u) << "a capture is of its own thread";
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(3, 0));
}

TEST(CudaStreamOwner, TheStreamIsHandedOver) {
  const Tensor y = Tensor::zeros({3}, DType::f32, kGpu);
  y.fill(1);
  cuda::hand_over_stream();
  std::thread([&] {
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(3, 1));
    y.fill(2);
    EXPECT_EQ(refusal_elsewhere([&] { y.fill(3); }), kRefusal);
    cuda::hand_over_stream();
  }).join();
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(3, 2));
}

}  // namespace
}  // namespace linnet
