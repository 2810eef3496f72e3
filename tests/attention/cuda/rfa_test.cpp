// The steps of random feature attention on the device as on the CPU.
#include "attention/common/wave_features.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

// Outputs and gradients of a function of inputs, in that dtype on that device.
template <typename Function>
std::vector<Tensor> run(const Function& function, const std::vector<Tensor>& inputs, DType dtype,
                        Device device) {
  std::vector<Variable> in;
  for (const Tensor& x : inputs) in.emplace_back(x.to(dtype).to(device), true);
  const std::vector<Variable> outputs = function(in, device);
  std::vector<Tensor> found, seeds;
  for (const Variable& y : outputs) {
    found.push_back(y.value());
    seeds.push_back(random_tensor(y.shape(), "dy" + std::to_string(seeds.size()), DType::f32)
                        .to(dtype)
                        .to(device));
  }
  backward(outputs, seeds);
  for (const Variable& x : in) found.push_back(x.grad());
  return found;
}

template <typename Function>
void expect_as_on_cpu(const Function& function, std::vector<Tensor> inputs) {
  for (Tensor& x : inputs) x = x.to(DType::f32).to(DType::f64);
  const auto expected = run(function, inputs, DType::f64, Device{});
  const auto got = run(function, inputs, DType::f32, kGpu);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(got[i].device(), kGpu);
    EXPECT_CLOSE(got[i], expected[i], 5e-6);
  }
}

TEST(CudaRfa, DirectionsAreThoseOfTheCpu) {
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 0, 1, 1, 1, 1}, {2, 5});
  Tensor x = random_tensor({2, 5, 3, 37}, "x");
  std::fill_n(x.data<double>() + 3 * 37, 3 * 37, NAN);  // masked
  std::fill_n(x.data<double>(), 37, 0.0);               // a vector without a direction
  expect_as_on_cpu(
      [&](const std::vector<Variable>& in, Device device) {
        return std::vector<Variable>{scaled_directions(in[0], in[1], mask.to(device))};
      },
      {x, random_tensor({3, 37}, "sigma")});
}

TEST(CudaRfa, WavesAreThoseOfTheCpu) {
  expect_as_on_cpu(
      [](const std::vector<Variable>& in, Device) {
        return std::vector<Variable>{wave_features(in[0], 0.7, in[1]), wave_features(in[0], 1.3)};
      },
      {random_tensor({2, 5, 3, 41}, "p"), random_tensor({2, 5, 3}, "factor")});
}

TEST(CudaRfa, GatesAreThoseOfTheCpu) {
  expect_as_on_cpu(
      [](const std::vector<Variable>& in, Device) {
        const Gate g = sigmoid_gate(in[0]);
        return std::vector<Variable>{g.log_open, g.closed};
      },
      {random_tensor({2, 5, 3}, "logits", DType::f64, 6)});
}

}  // namespace
}  // namespace linnet
