// The operations that mechanisms are composed of on the device.
#include <numeric>

#include "tests/autograd/composing_cases.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
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

// Copies between views, of elements or of 16 bytes where neighbours stay neighbours.
TEST(CudaComposing, CopiesHaveTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
    for (const int64_t width : {5, 12, 32}) {
      const Shape shape{3, 4, 6, width};
      std::vector<uint8_t> bytes(static_cast<size_t>(72 * width));
      std::iota(bytes.begin(), bytes.end(), uint8_t{0});
      const Tensor x =
          dtype == DType::u8 ? Tensor::from(bytes, shape) : random_tensor(shape, "x", dtype);
      const auto run = [&](Device device) {
        const Tensor here = x.to(device);
        std::vector<Tensor> found{
            slice(here, 1, 1, 3), slice(here, 3, 1, width), slice(here, 3, width / 4, width / 2),
            concatenate({here, here}, 2), concatenate({here, slice(here, 3, 0, 4)}, 3)};
        if (dtype == DType::u8) return found;
        for (const std::vector<int64_t>& order :
             {std::vector<int64_t>{0, 2, 1, 3}, {3, 2, 1, 0}, {1, 0, 2, 3}}) {
          found.push_back(permute(Variable(here), order).value());
        }
        found.push_back(expanded(here.reshape({3, 4, 6, 1, width}), {3, 4, 6, 2, width}));
        return found;
      };
      const std::vector<Tensor> expected = run({}), got = run(kGpu);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(got[i].device(), kGpu);
        EXPECT_TRUE(test::same_bits(got[i].to(Device{}), expected[i]))
            << name_of(dtype) << ", width " << width << ", copy " << i;
      }
    }
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
