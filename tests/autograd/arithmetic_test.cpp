// Sums, scaling, products, views, conversions: finite differences, other precisions, threads.
#include "autograd/arithmetic.h"

#include <gtest/gtest.h>

#include "tests/autograd/op_cases.h"

namespace linnet {
namespace {

using test::random_tensor;
using Variables = std::vector<Variable>;

struct Case {
  const char* name;
  test::Function function;
  size_t inputs;
};

const Case kCases[] = {
    {"add", [](const Variables& v) { return Variables{add(v[0], v[1])}; }, 2},
    {"add_same", [](const Variables& v) { return Variables{add(v[0], v[0])}; }, 1},
    {"weighted_sum",
     [](const Variables& v) { return Variables{weighted_sum(v[0], 0.5, v[1], -2)}; }, 2},
    {"scale", [](const Variables& v) { return Variables{scale(v[0], -1.5)}; }, 1},
    {"multiply", [](const Variables& v) { return Variables{multiply(v[0], v[1])}; }, 2},
    {"square", [](const Variables& v) { return Variables{multiply(v[0], v[0])}; }, 1},
    {"reshape",
     [](const Variables& v) {
       return Variables{multiply(reshape(v[0], {v[0].value().elements()}),
                                 reshape(v[1], {v[1].value().elements()}))};
     },
     2},
    {"repeat",
     [](const Variables& v) {
       return Variables{
           multiply(repeat(cast(sum_all(multiply(v[0], v[0])), v[1].dtype()), v[1].shape()), v[1])};
     },
     2},
    {"sum_all", [](const Variables& v) { return Variables{sum_all(multiply(v[0], v[1]))}; }, 2},
};

TEST(Arithmetic, GradientsAgreeWithFiniteDifferences) {
  for (const Case& c : kCases) {
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < c.inputs; ++i) {
      inputs.push_back(random_tensor({2, 5}, concat("x", i)));
    }
    EXPECT_TRUE(test::gradients_agree(c.function, inputs)) << c.name;
  }
}

TEST(Arithmetic, OtherPrecisionsAgreeWithDouble) {
  for (const Case& c : kCases) {
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < c.inputs; ++i) {
      inputs.push_back(random_tensor({7, 31}, concat("x", i)));
    }
    // At most four roundings per result; sum_all adds elements that were rounded once each.
    EXPECT_TRUE(test::precisions_agree(c.function, inputs, 4)) << c.name;
  }
}

TEST(Arithmetic, ThreadsDoNotChangeABit) {
  for (const Case& c : kCases) {
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < c.inputs; ++i) {
      inputs.push_back(random_tensor({70, 1001}, concat("x", i)));
    }
    EXPECT_TRUE(test::threads_agree(DType::f32, c.function, inputs)) << c.name;
  }
}

TEST(Arithmetic, CastConvertsGradientsBack) {
  const Variable x(random_tensor({6}, "x", DType::bf16), true);
  const Variable y = cast(x, DType::f32);
  EXPECT_EQ(y.dtype(), DType::f32);
  EXPECT_TRUE(cast(x, DType::bf16).same(x));
  backward({y}, {Tensor::full({6}, 1.00390625)});  // not a bf16: rounds to 1 (ties to even)
  EXPECT_EQ(x.grad().dtype(), DType::bf16);
  EXPECT_EQ(x.grad().to_vector<float>(), std::vector<float>(6, 1));
}

TEST(Arithmetic, RefusesShapesAndTypesThatDiffer) {
  const Variable a(Tensor::zeros({2, 3}));
  const Variable b(Tensor::zeros({3, 2}));
  const Variable c(Tensor::zeros({2, 3}, DType::f64));
  EXPECT_THROW(add(a, b), Error);
  EXPECT_THROW(add(a, c), Error);
  EXPECT_THROW(multiply(a, b), Error);
  EXPECT_THROW(weighted_sum(a, 1, c, 1), Error);
  EXPECT_THROW(reshape(a, {5}), Error);
}

TEST(GradCheck, FindsWrongMissingAndNanGradients) {
  const auto with = [](double factor) {
    return [factor](const Variables& v) {
      return Variables{
          record("wrong", v[0].value().clone(), {v[0]}, [factor](Gradients& gradients) {
            const Tensor dx = gradients.output().clone();
            for (int64_t i = 0; i < dx.elements(); ++i) {
              dx.data<double>()[i] *= factor;
            }
            gradients.add(0, dx);
          })};
    };
  };
  const std::vector<Tensor> x{random_tensor({3}, "x")};
  EXPECT_TRUE(grad_check(with(1), x).passed);
  EXPECT_FALSE(grad_check(with(1.01), x).passed);
  EXPECT_FALSE(grad_check(with(0), x).passed);
  EXPECT_FALSE(grad_check(with(std::nan("")), x).passed);
  GradCheckOptions directions;
  directions.directions = 3;
  EXPECT_TRUE(grad_check(with(1), x, directions).passed);
  EXPECT_FALSE(grad_check(with(1.01), x, directions).passed);
  const auto detached = [](const Variables& v) {
    return Variables{add(scale(v[0], 2), v[0].detach())};
  };
  EXPECT_FALSE(grad_check(detached, x).passed);
  EXPECT_THROW(grad_check(with(1), {Tensor::zeros({3})}), Error);
}

}  // namespace
}  // namespace linnet
