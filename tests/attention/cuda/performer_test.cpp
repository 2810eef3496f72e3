// Performer's features, maxima and decays on the device as on the CPU.
#include "attention/performer/positive_features.h"
#include "attention/performer/relative_maxima.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

// So many features, of vectors of so many channels.
void expect_features(int64_t m, int64_t K) {
  SCOPED_TRACE(concat(m, " features of ", K, " channels"));
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 0, 1, 1, 1, 1}, {2, 5});
  std::vector<Tensor> in{random_tensor({2, 5, 3, m}, "p"), random_tensor({2, 5, 3, K}, "x"),
                         random_tensor({2, 5, 3}, "c")};
  for (Tensor& x : in) x = x.to(DType::f32).to(DType::f64);
  std::fill_n(in[0].data<double>() + 3 * m, 3 * m, NAN);  // masked
  std::fill_n(in[1].data<double>() + 3 * K, 3 * K, NAN);
  for (const PerformerKernel kernel : {PerformerKernel::exp, PerformerKernel::relu}) {
    const auto run = [&](DType dtype, Device device) {
      const Variable p(in[0].to(dtype).to(device), true), x(in[1].to(dtype).to(device), true);
      const PositiveFeatures how{kernel, 0.3, in[2].to(dtype).to(device), mask.to(device)};
      const Variable y = positive_features(p, x, how);
      backward({y}, {random_tensor(y.shape(), "dy", DType::f32).to(dtype).to(device)});
      return std::vector<Tensor>{y.value(), p.grad(), x.grad()};
    };
    const auto expected = run(DType::f64, Device{}), got = run(DType::f32, kGpu);
    for (size_t i = 0; i < got.size(); ++i) {
      if (kernel == PerformerKernel::relu && i == 2) {
        EXPECT_EQ(got[i].to_vector<float>(),
                  std::vector<float>(static_cast<size_t>(2 * 5 * 3 * K), 0.0f));
        continue;
      }
      SCOPED_TRACE(i);
      EXPECT_EQ(got[i].device(), kGpu);
      EXPECT_CLOSE(got[i], expected[i], 5e-6);
    }
  }
}

// Rows that are read one element at a time, and 16 bytes at a time.
TEST(CudaPerformer, FeaturesAreThoseOfTheCpu) {
  expect_features(41, 7);
  expect_features(44, 8);
  expect_features(264, 7);
}

TEST(CudaPerformer, NanStaysInItsFeature) {
  const Tensor p = Tensor::zeros({1, 1, 1, 4}, DType::f32, kGpu);
  p.slice(2, {1}).fill(NAN);
  const Variable x(Tensor::full({1, 1, 1, 4}, 1, DType::f32, kGpu));
  const Tensor stabilizer = Tensor::zeros({1, 1, 1}, DType::f32, kGpu);
  for (const PerformerKernel kernel : {PerformerKernel::exp, PerformerKernel::relu}) {
    const std::vector<float> y =
        positive_features(Variable(p), x, {kernel, 0.3, stabilizer, {}}).value().to_vector<float>();
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(std::isnan(y[i]), i == 2) << i;
  }
}

TEST(CudaPerformer, LargestProjectionsAreThoseOfTheCpu) {
  for (const auto& [m, K] : {std::pair<int64_t, int64_t>{41, 7}, {44, 8}}) {
    const Tensor p = random_tensor({2, 5, 3, m}, "p", DType::f32, 5);
    const Tensor x = random_tensor({2, 5, 3, K}, "x", DType::f32);
    for (const bool of_exponents : {false, true}) {
      const Tensor expected = largest_projections(p, x, of_exponents);
      const Tensor got = largest_projections(p.to(kGpu), x.to(kGpu), of_exponents);
      EXPECT_TRUE(test::same_bits(got.to(Device{}), expected)) << of_exponents;
    }
  }
}

TEST(CudaPerformer, DifferencesFromMaximaAreThoseOfTheCpu) {
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 0, 1, 1, 1, 1}, {2, 5});
  const Tensor p = random_tensor({2, 5, 3, 41}, "p", DType::f32);
  // Masked tokens have no gradient.
  const Tensor dy = random_tensor({2, 5, 3, 41}, "dy", DType::f32);
  for (int64_t i = 0; i < dy.elements(); ++i) {
    if (mask.data<uint8_t>()[i / (3 * 41)] == 0) dy.data<float>()[i] = 0;
  }
  for (const MaximumOver over : {MaximumOver::row, MaximumOver::sequence, MaximumOver::tensor}) {
    const auto run = [&](DType dtype, Device device) {
      const Variable x(p.to(dtype).to(device), true);
      const Variable y = relative_to_maxima(x, {over, mask.to(device), {}});
      backward({y}, {dy.to(dtype).to(device)});
      return std::vector<Tensor>{y.value(), x.grad()};
    };
    const auto expected = run(DType::f64, Device{}), got = run(DType::f32, kGpu);
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_CLOSE(got[i], expected[i], 5e-6);
    }
  }
}

TEST(CudaPerformer, DecaysAreThoseOfTheCpu) {
  std::vector<float> numbers;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < 2 * 9 * 3; ++i) {
    const int64_t t = i / 3 % 9;
    numbers.push_back(t == 0 ? -INFINITY : static_cast<float>(t * t - i % 3));
  }
  for (int64_t i = 0; i < 18; ++i) ids.push_back(static_cast<int32_t>(i / 5));
  const Tensor maxima = Tensor::from(numbers, {2, 9, 3}), segments = Tensor::from(ids, {2, 9});
  const Tensor carried = Tensor::from(std::vector<int64_t>{-4, 0, kNoMaximum, 1, -9, 3}, {2, 3});
  for (const bool continued : {false, true}) {
    const Tensor first = continued ? carried : Tensor();
    const MaximumDecay expected = maximum_decay(maxima, first, segments);
    const MaximumDecay got =
        maximum_decay(maxima.to(kGpu), continued ? first.to(kGpu) : first, segments.to(kGpu));
    EXPECT_TRUE(test::same_bits(got.log_decay.to(Device{}), expected.log_decay));
    EXPECT_TRUE(test::same_bits(got.last.to(Device{}), expected.last));
  }
}

}  // namespace
}  // namespace linnet
