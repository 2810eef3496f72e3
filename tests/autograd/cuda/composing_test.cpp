// The operations that mechanisms are composed of on the device.
#include "tests/autograd/composing_cases.h"

namespace linnet {
namespace {

using test::kGpu;
using Variables = std::vector<Variable>;

TEST(CudaComposing, AgreesWithDouble) {
  for (const test::ComposingCase& c : test::composing_cases()) {
    const Device device = kGpu;
    // Double is computed on the CPU, and masks must be where x is.
    const test::Function function = [&](const Variables& v) {
      return c.function(v, v[0].value().device());
    };
    EXPECT_TRUE(test::precisions_agree(function, test::inputs_of(c), c.roundings, device))
        << c.name;
  }
}

// Sums of many elements are made by blocks, those of few by threads; few sums of very many in
// parts.
TEST(CudaComposing, LongSums) {
  for (const Shape& shape : {Shape{700, 5}, Shape{5, 700}, Shape{2, 20000}, Shape{5000, 40}}) {
    EXPECT_TRUE(test::precisions_agree(
        [](const Variables& v) {
          return Variables{sum(v[0], 0), sum(v[0], 1)};
        },
        {test::random_tensor(shape, "x")}, 4, kGpu));
  }
  const Variable none(Tensor::zeros({0, 300}, DType::f32, kGpu));
  EXPECT_EQ(sum(none, 1).value().elements(), 0);
}

TEST(CudaComposing, DeadRowsAndNan) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const Variable x(Tensor::from(std::vector<float>{-inf, -inf, 1, nan}, {2, 2}, kGpu), true);
  for (const int64_t dimension : {0, 1}) {
    const Variable y = transpose(x, dimension, 1);
    const std::vector<float> p = softmax(y, dimension).value().to_vector<float>();
    EXPECT_EQ(p[0], 0);
    EXPECT_TRUE(std::isnan(p[3]));
    EXPECT_EQ(logsumexp(y, dimension).value().to_vector<float>()[0], -inf);
    EXPECT_TRUE(std::isnan(max(y, dimension).value().to_vector<float>()[1]));
  }
  const Variable narrow(Tensor::full({2}, 40, DType::bf16, kGpu), true);
  backward({logsumexp(narrow, 0)}, {Tensor::full({1}, 1, DType::bf16, kGpu)});
  EXPECT_EQ(narrow.grad().to(DType::f32).to_vector<float>(), (std::vector<float>{0.5, 0.5}));
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0}, {2}, kGpu);
  EXPECT_EQ(masked_fill(x, mask, 2).value().to_vector<float>(),
            (std::vector<float>{-inf, 2, 1, 2}));
}

}  // namespace
}  // namespace linnet
