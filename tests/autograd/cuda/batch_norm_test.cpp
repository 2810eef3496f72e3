// BatchNorm on the device: values, gradients and running statistics.
#include "autograd/batch_norm.h"

#include "tests/bf16_tolerance.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;

TEST(CudaBatchNorm, IsThatOfTheCpuWithItsGradients) {
  const Tensor mask = Tensor::full({90}, 1, DType::u8);
  for (const int64_t row : {3, 40, 89}) mask.data<uint8_t>()[row] = 0;
  // y, dx and the running statistics, on the host.
  const auto results = [&](DType rounded, DType dtype, Device device, bool training) {
    const auto given = [&](const char* name) {
      return test::random_tensor({90, 5}, name).to(rounded).to(dtype).to(device);
    };
    const DType kept = dtype == DType::f64 ? DType::f64 : DType::f32;
    const RunningStatistics running{Tensor::full({5}, 0.25, kept).to(device),
                                    Tensor::full({5}, 2, kept).to(device)};
    const Variable x(given("x"), true);
    const Variable y = batch_norm(x, mask.to(device), running, training);
    backward({y}, {given("dy")});
    return std::vector<Tensor>{y.value().to(Device{}), x.grad().to(Device{}),
                               running.mean.to(Device{}), running.variance.to(Device{})};
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool training : {true, false}) {
      const auto expected = results(dtype, DType::f64, {}, training),
                 got = results(dtype, dtype, kGpu, training);
      test::expect_close_in(dtype, got, expected, 3e-6,
                            [&] { return results(dtype, dtype, {}, training); });
    }
  }
}

}  // namespace
}  // namespace linnet
