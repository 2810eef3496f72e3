// Norms on the device.
#include "autograd/norms.h"

#include "tests/autograd/op_cases.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using Variables = std::vector<Variable>;

constexpr NormKind kKinds[] = {NormKind::layer, NormKind::rms, NormKind::scale};

// x with gain and bias as the kind has them.
std::vector<Tensor> inputs_of(NormKind kind, const Shape& shape) {
  const int64_t channels = shape[-1];
  return {random_tensor(shape, "x"),
          random_tensor({kind == NormKind::scale ? 1 : channels}, "gain"),
          kind == NormKind::layer ? random_tensor({channels}, "bias") : Tensor()};
}

TEST(CudaNorms, AgreeWithDouble) {
  for (const NormKind kind : kKinds) {
    for (const int64_t channels : {1, 33, 200}) {
      // 2 x 151 rows: three blocks of rows.
      EXPECT_TRUE(test::precisions_agree(
          [kind](const Variables& v) {
            return Variables{norm(v[0], v[1], v[2], {kind, 1e-2})};
          },
          inputs_of(kind, {2, 151, channels}), 60, kGpu))
          << static_cast<int>(kind) << " " << channels;
    }
  }
}

TEST(CudaNorms, NeedNeitherGainNorBias) {
  for (const NormKind kind : kKinds) {
    EXPECT_TRUE(test::precisions_agree(
        [kind](const Variables& v) {
          return Variables{norm(v[0], {}, {}, {kind, 1e-2})};
        },
        {random_tensor({7, 65}, "x")}, 20, kGpu));
  }
}

TEST(CudaNorms, ResidualSumsAgreeWithDouble) {
  for (const NormKind kind : kKinds) {
    for (const double p : {0.0, 0.3}) {
      std::vector<Tensor> inputs = inputs_of(kind, {2, 9, 37});
      inputs.push_back(random_tensor({2, 9, 37}, "branch"));
      EXPECT_TRUE(test::precisions_agree(
          [&](const Variables& v) {
            DropoutSpec dropout;
            dropout.probability = p;
            dropout.key = RandomKey{1, 2, 3};
            dropout.place.examples = Tensor::full({2}, 4, DType::i64, v[0].value().device());
            const auto [sum, normed] = residual_norm(v[0], v[3], dropout, v[1], v[2], {kind, 1e-2});
            return Variables{sum, normed};
          },
          // One gain for all 666 elements: their products nearly cancel in its gradient.
          inputs, kind == NormKind::scale ? 200 : 40, kGpu));
    }
  }
}

TEST(CudaNorms, ScaleNormsFloorIsConstant) {
  const Tensor small = random_tensor({3, 20}, "x", DType::f64, 1e-4);
  EXPECT_TRUE(test::precisions_agree(
      [](const Variables& v) {
        return Variables{norm(v[0], v[1], {}, {NormKind::scale, 1e-2})};
      },
      {small, random_tensor({1}, "gain")}, 20, kGpu));
}

TEST(CudaNorms, NanStaysInItsRow) {
  for (const NormKind kind : kKinds) {
    const Tensor x = random_tensor({3, 5}, "x", DType::f32).to(kGpu);
    x.slice(7, {1}).fill(NAN);
    const std::vector<float> y = norm(Variable(x), {}, {}, {kind, 1e-5}).value().to_vector<float>();
    for (size_t i = 0; i < 15; ++i) EXPECT_EQ(std::isnan(y[i]), i / 5 == 1) << i;
  }
}

TEST(CudaNorms, NoRowsGiveZeroGradients) {
  const Variable x(Tensor::zeros({2, 0, 5}, DType::f32, kGpu), true);
  const Variable gain(Tensor::full({5}, 1, DType::f32, kGpu), true);
  backward({norm(x, gain, {}, {})}, {Tensor::zeros({2, 0, 5}, DType::f32, kGpu)});
  EXPECT_EQ(gain.grad().to_vector<float>(), std::vector<float>(5, 0));
}

}  // namespace
}  // namespace linnet
