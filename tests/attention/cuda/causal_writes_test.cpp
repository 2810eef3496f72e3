// The writes of tokens to Luna's causal memory on the CUDA device, against the CPU's double
// precision.
#include "attention/luna/causal_writes.h"

#include <cmath>

#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

constexpr int64_t B = 2, T = 7, H = 2, N = 11, K = 3;

// Values and gradients on the host; tokens 1 and 9 are padding that holds NaN.
std::vector<Tensor> results(DType dtype, Device device, double scale) {
  const Tensor x = test::random_tensor({B, T, H, K}, "x", DType::f64);
  const Tensor mask = Tensor::full({B, T}, 1, DType::u8);
  for (const int64_t token : {1, 9}) {
    mask.data<uint8_t>()[token] = 0;
    std::fill_n(x.data<double>() + token * H * K, H * K, std::nan(""));
  }
  const Variable tokens(x.to(dtype).to(device), true);
  const Variable memory(test::random_tensor({N, H, K}, "p", DType::f64).to(dtype).to(device), true);
  const Variable y = causal_writes(tokens, memory, mask.to(device), scale);
  backward({y}, {test::random_tensor(y.shape(), "dy", DType::f64).to(dtype).to(device)});
  std::vector<Tensor> out{y.value(), tokens.grad(), memory.grad()};
  for (Tensor& each : out) each = each.to(Device{});
  return out;
}

TEST(CudaCausalWrites, AreThoseOfTheCpuWithTheirGradients) {
  for (const double scale : {0.7, 300.0}) {  // the second reaches both ends of the activation
    SCOPED_TRACE(scale);
    const std::vector<Tensor> expected = results(DType::f64, Device{}, scale);
    const std::vector<Tensor> got = results(DType::f32, test::kGpu, scale);
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_CLOSE(got[i], expected[i], scale < 1 ? 2e-6 : 1e-4);
    }
  }
}

TEST(CausalWrites, AreOneAtZeroAndLinearFarAbove) {
  const Tensor x = Tensor::from(std::vector<double>{0, 1, 2000, -2000}, {1, 4, 1, 1});
  const Variable p(Tensor::full({1, 1, 1}, 1, DType::f64));
  const std::vector<double> y = causal_writes(Variable(x), p, {}, 1).value().to_vector<double>();
  EXPECT_DOUBLE_EQ(y[0], 1);
  EXPECT_NEAR(y[1], std::log2(3.0), 1e-15);
  EXPECT_DOUBLE_EQ(y[2], 2000);  // times ln 2 and divided by it
  EXPECT_EQ(y[3], 0);
}

}  // namespace
}  // namespace linnet
