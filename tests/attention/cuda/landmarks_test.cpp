// The functions of LARA on the CUDA device against the CPU's double precision.
#include "attention/common/landmarks/landmarks.h"
#include "attention/lara/optimal.h"
#include "attention/lara/proposals.h"

#include <cmath>

#include "attention/common/landmarks/noise.h"
#include "attention/common/mixer_support.h"
#include "core/random.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

constexpr int64_t B = 2, T = 7, H = 2, C = 4, K = 3;

Tensor numbers(const Shape& shape, const std::string& name) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

// Tokens 1 and 5 of the first row are padding that holds NaN; the second row has three valid ones.
struct Problem {
  Tensor x = numbers({B, T, H, K}, "x"), mask = Tensor::full({B, T}, 1, DType::u8);
  Problem() {
    for (const int64_t token : {1, 5, 7, 9, 11, 13}) {
      mask.data<uint8_t>()[token] = 0;
      std::fill_n(x.data<double>() + token * H * K, H * K, std::nan(""));
    }
  }
};

// Outputs and gradients of these functions, on the host.
std::vector<Tensor> results(DType dtype, Device device) {
  const Problem p;
  const auto leaf = [&](const Tensor& x) { return Variable(x.to(dtype).to(device), true); };
  const auto seed = [&](const Variable& y, const char* name) {
    return numbers(y.shape(), name).to(dtype).to(device);
  };
  const Tensor mask = p.mask.to(device);
  std::vector<Tensor> out{landmark_members(mask, B, T, H, C, dtype, device),
                          landmark_members({}, B, T, H, C, dtype, device)};
  const Tensor used = Tensor::full({B, H, C}, 1, DType::f64);
  const Tensor masses = numbers({B, H, C}, "mass");
  used.data<double>()[B * H * C - 1] = 0;
  masses.data<double>()[B * H * C - 1] = -std::numeric_limits<double>::infinity();
  const Variable x = leaf(p.x), w = leaf(numbers({B, H, C, K}, "w"));
  const Variable m = leaf(numbers({B, H, C, K}, "m")), mass(masses.to(device), true);
  const Variable logits = landmark_logits(x, w, used.to(device), mask, 0.7);
  const Variable keys = landmark_keys(m, w, mass, 0.7), ones = with_one(zeros_for_masked(x, mask));
  const Variable density = relative_log_normalizer(mass, w, m, 0.7);
  // The landmark without tokens keeps its mass and gets no gradient.
  const Tensor seeds = numbers(density.shape(), "d");
  seeds.data<double>()[B * H * C - 1] = 0;
  backward({logits, keys, ones, density},
           {seed(logits, "a"), seed(keys, "b"), seed(ones, "c"), seeds.to(device)});
  const Tensor relative = density.value().to(Device{}).clone();
  EXPECT_EQ(relative.data<double>()[B * H * C - 1], -std::numeric_limits<double>::infinity());
  relative.data<double>()[B * H * C - 1] = 0;
  // The landmark without tokens has logits of -infinity, which no difference compares.
  const Tensor finite = logits.value().to(Device{}).to(DType::f64).clone();
  for (int64_t t = 0; t < T; ++t) {
    double& value = finite.data<double>()[((T + t) * H + H - 1) * C + C - 1];
    EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
    value = 0;
  }
  for (const Tensor& y :
       {finite, relative, keys.value(), ones.value(), x.grad(), w.grad(), m.grad(), mass.grad()}) {
    out.push_back(y);
  }
  for (Tensor& y : out) y = y.to(Device{});
  return out;
}

TEST(CudaLandmarks, AreThoseOfTheCpu) {
  const std::vector<Tensor> expected = results(DType::f64, Device{});
  const std::vector<Tensor> got = results(DType::f32, test::kGpu);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_CLOSE(got[i], expected[i], 2e-6);
  }
}

// Logits, some at the floor and some above it, and their gradients.
std::vector<Tensor> optimal_results(DType dtype, Device device) {
  const Problem p;
  const auto leaf = [&](const Tensor& x) { return Variable(x.to(device), true); };
  const Tensor relative = numbers({B, H, C}, "relative");
  relative.data<double>()[B * H * C - 1] = -std::numeric_limits<double>::infinity();
  const OptimalInputs in{leaf(numbers({B, T, H, C}, "found").to(dtype)),
                         leaf(numbers({B, T, H, C}, "near").to(dtype)),
                         leaf(numbers({B, H, C}, "totals")), leaf(relative),
                         leaf(numbers({B, H, C, K + 1}, "keys").to(dtype))};
  const Variable y = optimal_logits(in, p.mask.to(device));
  backward({y}, {numbers(y.shape(), "dy").to(dtype).to(device)});
  std::vector<Tensor> out{y.value(),        in.found.grad(),    in.near.grad(),
                          in.totals.grad(), in.relative.grad(), in.keys.grad()};
  for (Tensor& each : out) each = each.to(Device{});
  return out;
}

TEST(CudaLandmarks, OptimalWeightsAreThoseOfTheCpu) {
  const std::vector<Tensor> expected = optimal_results(DType::f64, Device{});
  const std::vector<Tensor> got = optimal_results(DType::f32, test::kGpu);
  const std::vector<double> near = expected[2].to_vector<double>();
  EXPECT_GT(std::count(near.begin(), near.end(), 0), T * C);  // masked, and one not in use
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_CLOSE(got[i], expected[i], 2e-5);
  }
}

// A kernel's logarithm and cosine are its own: a number may round to its neighbour.
TEST(CudaLandmarks, NoiseIsThatOfTheCpuInTheStepThatTheDeviceHolds) {
  RandomKey key{5, 9, 17};
  const Tensor examples = Tensor::from(std::vector<int64_t>{12, 3}, {B});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto noise_in = [&](DType computed) {
      return landmark_noise(key, examples, Tensor::zeros({B, H, C, K}, computed));
    };
    const Tensor step = Tensor::from(std::vector<int64_t>{9}, {1}, test::kGpu);
    RandomKey other = key;
    other.step = 4;
    other.device_step = static_cast<const uint64_t*>(step.raw());
    const Tensor got = landmark_noise(other, examples.to(test::kGpu),
                                      Tensor::zeros({B, H, C, K}, dtype, test::kGpu));
    test::expect_close_in(dtype, {got}, {noise_in(DType::f64)}, 1e-6,
                          [&] { return std::vector<Tensor>{noise_in(dtype)}; });
  }
}

}  // namespace
}  // namespace linnet
