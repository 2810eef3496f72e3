// Updates on the device are those of the CPU: every rule, groups, clipping, skipping, averages.
#include "optim/cuda/update.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "core/cuda/elementwise.h"
#include "optim/clip.h"
#include "optim/ema.h"
#include "optim/optimizer.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

constexpr int64_t kSize = 40000;  // more than one block of a group

std::vector<ParameterGroup> groups() {
  // Of groups that begin and end within 16 bytes, and a short one.
  return {
      {0, 101, 0.1, 1}, {113, 36002, 0.01, 0.5}, {36002, 36005, 0.1, 1}, {36005, kSize - 7, 0, 2}};
}

Tensor scalars_of(double lr, double beta1, double scale, double clip_norm) {
  return Tensor::from(std::vector<double>{lr, beta1, scale, clip_norm, 0, 0, 0},
                      {cuda::kUpdateScalars}, kGpu);
}

// One update of both sides from the same gradients; the norm is clipped to `clip_norm`.
void step_both(Optimizer& host, Optimizer& device, const Tensor& host_weights,
               const Tensor& device_weights, int64_t step, std::optional<double> beta1,
               double clip_norm) {
  const Tensor gradients = random_tensor({kSize}, "gradient" + std::to_string(step), DType::f32);
  const double lr = 0.01 / static_cast<double>(step), scale = 0.25;
  StepRates rates{lr, scale, beta1};
  rates.gradient_scale *= clip_factor(global_norm(gradients) * scale, clip_norm);
  host.step(host_weights, gradients, rates);
  const Tensor on_device = gradients.to(kGpu);
  const Tensor scalars =
      scalars_of(lr, beta1.value_or(std::numeric_limits<double>::quiet_NaN()), scale, clip_norm);
  const Tensor squares = Tensor::empty({}, DType::f64, kGpu);
  cuda::sum_of_squares(on_device, squares);
  cuda::prepare_update(scalars, squares, Tensor::zeros({}, DType::f64, kGpu), false);
  device.step_on_device(device_weights, on_device, scalars);
}

using Maker = std::function<std::unique_ptr<Optimizer>(Device)>;

void expect_same_updates(const Maker& make, std::optional<double> beta1, double clip_norm) {
  const std::unique_ptr<Optimizer> host = make({}), device = make(kGpu);
  const Tensor weights = random_tensor({kSize}, "weights", DType::f32);
  const Tensor device_weights = weights.to(kGpu);
  for (int64_t step = 1; step <= 4; ++step) {
    step_both(*host, *device, weights, device_weights, step, beta1, clip_norm);
  }
  EXPECT_CLOSE(device_weights, weights, 1e-6);
  EXPECT_EQ(device->updates(), 4);
  const StateTensors expected = host->state(), got = device->state();
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_CLOSE(got.at(name), tensor, 1e-6);
}

TEST(CudaUpdate, EveryRuleIsThatOfTheCpu) {
  for (const bool decoupled : {true, false}) {
    const Maker adam = [decoupled](Device device) {
      return std::make_unique<Adam>(groups(), kSize, DType::f32,
                                    AdamOptions{0.9, 0.99, 1e-6, decoupled}, device);
    };
    expect_same_updates(adam, {}, 0);
    expect_same_updates(adam, 0.85, 3);
  }
  for (const double momentum : {0.0, 0.9}) {
    expect_same_updates(
        [momentum](Device device) {
          return std::make_unique<Sgd>(groups(), kSize, DType::f32, momentum, device);
        },
        {}, 2);
  }
  expect_same_updates(
      [](Device device) {
        return std::make_unique<Nag>(groups(), kSize, DType::f32, 0.99, device);
      },
      {}, 0);
}

TEST(CudaUpdate, NothingChangesWhenTheStepIsSkipped) {
  Adam adam(groups(), kSize, DType::f32, {}, kGpu);
  const Tensor weights = random_tensor({kSize}, "weights", DType::f32).to(kGpu);
  const Tensor before = weights.to(Device{}).clone();
  WeightAverage average(weights, 0.5, false);
  for (const bool bad_loss : {true, false}) {
    const Tensor gradients = Tensor::full({kSize}, 1, DType::f32, kGpu);
    if (!bad_loss) gradients.slice(123, {1}).fill(INFINITY);
    const Tensor scalars = scalars_of(0.1, 0.9, 1, 1);
    const Tensor squares = Tensor::empty({}, DType::f64, kGpu);
    cuda::sum_of_squares(gradients, squares);
    cuda::prepare_update(scalars, squares, Tensor::full({}, bad_loss ? NAN : 0, DType::f64, kGpu),
                         true);
    EXPECT_EQ(scalars.to_vector<double>()[cuda::kSkip], 1);
    cuda::clip_by_value(gradients, scalars, 0.5);
    EXPECT_EQ(gradients.slice(0, {1}).item(), 1) << "gradients stay for the message";
    adam.step_on_device(weights, gradients, scalars);
    average.update_on_device(weights, scalars);
  }
  EXPECT_EQ(adam.updates(), 0);
  EXPECT_TRUE(test::same_bits(weights.to(Device{}), before));
  EXPECT_TRUE(test::same_bits(average.average().to(Device{}), before));
}

TEST(CudaUpdate, ClipsByValueAfterScaling) {
  const Tensor gradients = Tensor::from(std::vector<float>{-8, -1, 0.5, 3}, {4}, kGpu);
  const Tensor scalars = scalars_of(0.1, 0.9, 0.5, 0);
  cuda::prepare_update(scalars, Tensor::full({}, 1, DType::f64, kGpu),
                       Tensor::zeros({}, DType::f64, kGpu), true);
  cuda::clip_by_value(gradients, scalars, 1);
  EXPECT_EQ(gradients.to_vector<float>(), (std::vector<float>{-1, -0.5, 0.25, 1}));
  EXPECT_EQ(scalars.to_vector<double>()[cuda::kFactor], 1) << "scaled already";
}

TEST(CudaUpdate, AveragesWeightsAsTheCpuDoes) {
  for (const bool warmup : {true, false}) {
    const Tensor weights = random_tensor({500}, "start", DType::f32);
    const Tensor device_weights = weights.to(kGpu);
    WeightAverage host(weights, 0.9, warmup), device(device_weights, 0.9, warmup);
    for (int step = 0; step < 3; ++step) {
      weights.copy_from(random_tensor({500}, "weights" + std::to_string(step), DType::f32));
      device_weights.copy_from(weights);
      host.update(weights);
      device.update_on_device(device_weights, scalars_of(0, 0, 1, 0));
    }
    EXPECT_CLOSE(device.average(), host.average(), 1e-6);
    device.swap(device_weights);
    EXPECT_CLOSE(device_weights, host.average(), 1e-6);
    EXPECT_TRUE(test::same_bits(device.average().to(Device{}), weights));
  }
}

}  // namespace
}  // namespace linnet
