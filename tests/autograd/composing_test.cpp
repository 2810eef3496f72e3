// The operations that mechanisms are composed of: values against plain loops, finite differences,
// other precisions, threads, edge cases, refusals.
#include <gtest/gtest.h>

#include "autograd/views.h"
#include "tests/autograd/composing_cases.h"

namespace linnet {
namespace {

using test::random_tensor;
using Variables = std::vector<Variable>;

test::Function on_cpu(const test::ComposingCase& c) {
  return [f = c.function](const Variables& v) { return f(v, Device{}); };
}

TEST(Composing, GradientsAgreeWithFiniteDifferences) {
  for (const test::ComposingCase& c : test::composing_cases()) {
    EXPECT_TRUE(test::gradients_agree(on_cpu(c), test::inputs_of(c))) << c.name;
  }
}

TEST(Composing, OtherPrecisionsAgreeWithDouble) {
  for (const test::ComposingCase& c : test::composing_cases()) {
    EXPECT_TRUE(test::precisions_agree(on_cpu(c), test::inputs_of(c), c.roundings)) << c.name;
  }
}

TEST(Composing, ThreadsDoNotChangeABit) {
  const Tensor large = random_tensor({40, 9, 70, 8}, "x");
  const Variables extra{Variable(random_tensor({70, 1}, "y", DType::f32))};
  const test::Function functions[] = {
      [&](const Variables& v) {
        return Variables{add(v[0], extra[0]), divide(extra[0], v[0])};
      },
      [&](const Variables& v) {
        return Variables{permute(v[0], {3, 1, 0, 2})};
      },
      [&](const Variables& v) {
        return Variables{sum(v[0], 0), softmax(v[0], 2), mean(v[0], 3)};
      },
      [&](const Variables& v) {
        return Variables{cumulative_sum(v[0], 2), exp(v[0])};
      },
      [&](const Variables& v) { return Variables{matmul(v[0], v[0], Transpose::yes)}; },
      [&](const Variables& v) {
        const Variable rows = scale(reshape(slice(v[0], 1, 0, 1), {40, 70, 8}), 0.1);
        const Variable lower = slice(matmul(rows, rows, Transpose::no, Transpose::yes), 0, 0, 1);
        return Variables{
            unit_triangular_solve(lower, reshape(slice(v[0], 1, 1, 5), {1, 70, 1280}))};
      },
      [&](const Variables& v) {
        const Tensor index = Tensor::from(std::vector<int32_t>{3, 1, 3, -1}, {4});
        return Variables{gather(v[0], index), scatter_add(gather(v[0], index), index, 5)};
      }};
  for (const auto& function : functions) {
    EXPECT_TRUE(test::threads_agree(DType::f32, function, {large}));
  }
}

// Few sums of many terms are made in parts.
TEST(Composing, LongSums) {
  for (const Shape& shape : {Shape{5000, 3}, Shape{3, 5000}, Shape{50, 70, 2}, Shape{9000}}) {
    const Tensor x = random_tensor(shape, "x");
    const auto sums = [](const Variables& v) {
      const Variable zero(Tensor::zeros({}, v[0].dtype()), true);
      Variables results{sum(v[0], 0), sum(v[0], -1)};
      // The gradient of a scalar is the sum over everything.
      backward({add(v[0], zero)}, {v[0].value()});
      results.emplace_back(zero.grad());
      return results;
    };
    const Tensor total = sums({Variable(x)})[2].value();
    double expected = 0;
    for (int64_t i = 0; i < x.elements(); ++i) expected += x.data<double>()[i];
    EXPECT_NEAR(total.item(), expected, 1e-10) << shape;
    EXPECT_TRUE(test::precisions_agree(sums, {x}, 4)) << shape;
    EXPECT_TRUE(test::threads_agree(DType::f32, sums, {x})) << shape;
  }
}

TEST(Composing, GradientsOfSlicesAddUp) {
  const auto function = [](const Variables& v) {
    const Variable x = scale(v[0], 2);
    return Variables{
        slice(x, 1, 0, 3),   slice(x, 1, 2, 5), slice(x, -1, 1, 2), slice(v[0], 0, 1, 3), x,
        slice(v[0], 0, 2, 3)};
  };
  EXPECT_TRUE(test::gradients_agree(function, {random_tensor({3, 5, 4}, "x")}));
  EXPECT_TRUE(test::precisions_agree(function, {random_tensor({3, 5, 4}, "x")}, 4));
  // A parameter in bf16 whose gradients add up in f32.
  Variable parameter(Tensor::zeros({2, 3}, DType::bf16), true);
  parameter.set_grad(Tensor::full({2, 3}, 1));
  const Tensor seed = Tensor::full({2, 1}, 0x1p-10, DType::bf16);
  backward({slice(parameter, 1, 1, 2)}, {seed});
  EXPECT_EQ(parameter.grad().to_vector<float>(),
            (std::vector<float>{1, 1 + 0x1p-10F, 1, 1, 1 + 0x1p-10F, 1}));
}

// Elements of x [3,5,7,4] by their places.
struct Values {
  Tensor x = random_tensor({3, 5, 7, 4}, "x");
  double at(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return x.data<double>()[((a * 5 + b) * 7 + c) * 4 + d];
  }
  // Calls body(a, b, c, d) for every place, in order.
  template <typename Body>
  static void each(const Body& body) {
    for (int64_t i = 0; i < 420; ++i) body(i / 140, i / 28 % 5, i / 4 % 7, i % 4);
  }
};

TEST(Composing, LayoutsMoveElements) {
  const Values v;
  const Variable x(v.x);
  const Tensor moved = permute(x, {2, 0, 3, 1}).value(), part = slice(x, -2, 2, 5).value();
  EXPECT_EQ(moved.shape(), Shape({7, 3, 4, 5}));
  EXPECT_EQ(part.shape(), Shape({3, 5, 3, 4}));
  const Tensor wide = expand(Variable(v.x.rows(0, 1)), {2, 3, 5, 7, 4}).value();
  const Tensor joined = concatenate({slice(x, 1, 3, 5), slice(x, 1, 0, 3)}, 1).value();
  Values::each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    EXPECT_EQ(moved.data<double>()[((c * 3 + a) * 4 + d) * 5 + b], v.at(a, b, c, d));
    if (2 <= c && c < 5) {
      EXPECT_EQ(part.data<double>()[((a * 5 + b) * 3 + c - 2) * 4 + d], v.at(a, b, c, d));
    }
    EXPECT_EQ(wide.data<double>()[(((3 + a) * 5 + b) * 7 + c) * 4 + d], v.at(0, b, c, d));
    const int64_t place = b < 3 ? b + 2 : b - 3;
    EXPECT_EQ(joined.data<double>()[((a * 5 + place) * 7 + c) * 4 + d], v.at(a, b, c, d));
  });
}

TEST(Composing, ReductionsFollowTheirDefinitions) {
  const Values v;
  const Variable x(v.x);
  for (int64_t dimension = 0; dimension < 4; ++dimension) {
    const Shape shape = v.x.shape().with(dimension, 1);
    const auto of_line = [&](int64_t a, int64_t b, int64_t c, int64_t d) {
      std::vector<double> line;
      int64_t place[4] = {a, b, c, d};
      for (int64_t j = 0; j < v.x.size(dimension); ++j) {
        place[dimension] = j;
        line.push_back(v.at(place[0], place[1], place[2], place[3]));
      }
      return line;
    };
    const Tensor all = expand(sum(x, dimension), v.x.shape()).value();
    const Tensor top = expand(max(x, dimension - 4), v.x.shape()).value();
    const Tensor lse = expand(logsumexp(x, dimension), v.x.shape()).value();
    const Tensor p = softmax(x, dimension).value(), run = cumulative_sum(x, dimension).value(),
                 rest = cumulative_sum(x, dimension, true).value();
    EXPECT_EQ(sum(x, dimension).shape(), shape);
    int64_t i = 0;
    Values::each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
      const std::vector<double> line = of_line(a, b, c, d);
      const int64_t place[4] = {a, b, c, d};
      double total = 0, exponents = 0, up_to = 0, from = 0;
      for (int64_t j = 0; j < std::ssize(line); ++j) {
        const double value = line[static_cast<size_t>(j)];
        total += value;
        exponents += std::exp(value);
        if (j <= place[dimension]) up_to += value;
        if (j >= place[dimension]) from += value;
      }
      EXPECT_NEAR(all.data<double>()[i], total, 1e-13);
      EXPECT_EQ(top.data<double>()[i], *std::ranges::max_element(line));
      EXPECT_NEAR(lse.data<double>()[i], std::log(exponents), 1e-13);
      EXPECT_NEAR(p.data<double>()[i], std::exp(v.at(a, b, c, d)) / exponents, 1e-14);
      EXPECT_NEAR(run.data<double>()[i], up_to, 1e-13);
      EXPECT_NEAR(rest.data<double>()[i], from, 1e-13);
      ++i;
    });
  }
}

TEST(Composing, ArithmeticBroadcasts) {
  const Values v;
  const Tensor row = random_tensor({7, 1}, "row");
  const Variable x(v.x), y(row);
  const Tensor results[] = {add(x, y).value(), subtract(y, x).value(), multiply(y, x).value(),
                            divide(x, y).value()};
  int64_t i = 0;
  Values::each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    const double left = v.at(a, b, c, d), right = row.data<double>()[c];
    EXPECT_EQ(results[0].data<double>()[i], left + right);
    EXPECT_EQ(results[1].data<double>()[i], right - left);
    EXPECT_EQ(results[2].data<double>()[i], left * right);
    EXPECT_EQ(results[3].data<double>()[i], left / right);
    ++i;
  });
}

TEST(Composing, ProductsAndTriangularSystems) {
  const Tensor a = random_tensor({2, 5, 6}, "a"), b = random_tensor({2, 6, 3}, "b");
  const Tensor c = matmul(Variable(a), Variable(b)).value();
  for (int64_t i = 0; i < c.elements(); ++i) {
    double expected = 0;
    for (int64_t k = 0; k < 6; ++k) {
      expected += a.data<double>()[i / 3 * 6 + k] * b.data<double>()[(i / 15 * 6 + k) * 3 + i % 3];
    }
    EXPECT_NEAR(c.data<double>()[i], expected, 1e-13);
  }
  const Tensor lower = random_tensor({2, 6, 6}, "lower");
  const Tensor x = unit_triangular_solve(Variable(lower), Variable(b)).value();
  // Every column 50 times.
  const Tensor right = expanded(b.reshape({2, 6, 3, 1}), {2, 6, 3, 50}).reshape({2, 6, 150});
  const Tensor wide = unit_triangular_solve(Variable(lower), Variable(right)).value();
  for (int64_t i = 0; i < wide.elements(); ++i) {
    EXPECT_NEAR(wide.data<double>()[i], x.data<double>()[i / 50], 1e-12);
  }
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t row = i / 3 % 6, g = i / 18;
    double product = x.data<double>()[i];
    for (int64_t k = 0; k < row; ++k) {
      product +=
          lower.data<double>()[(g * 6 + row) * 6 + k] * x.data<double>()[(g * 6 + k) * 3 + i % 3];
    }
    EXPECT_NEAR(product, b.data<double>()[i], 1e-12);
  }
  // bf16 is solved in f32 and rounded once.
  const auto solved = [&](DType dtype) {
    const auto rounded = [&](const Tensor& t) { return Variable(t.to(DType::bf16).to(dtype)); };
    return unit_triangular_solve(rounded(lower), rounded(b)).value().to(DType::bf16);
  };
  EXPECT_TRUE(test::same_bits(solved(DType::bf16), solved(DType::f32)));
}

TEST(Composing, MasksHideNanAndDeadRowsAreZeros) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 1}, {3});
  const Variable x(Tensor::from(std::vector<double>{1, nan, 2}, {3}), true);
  const Variable filled = masked_fill(x, mask, -inf);
  EXPECT_EQ(filled.value().to_vector<double>(), (std::vector<double>{1, -inf, 2}));
  const Variable p = softmax(filled, 0);
  EXPECT_NEAR(p.value().data<double>()[2], 1 / (1 + std::exp(-1)), 1e-15);
  backward({p}, {Tensor::from(std::vector<double>{1, 5, 0}, {3})});
  EXPECT_EQ(x.grad().data<double>()[1], 0);
  EXPECT_TRUE(std::isfinite(x.grad().data<double>()[0]));

  const Variable dead(Tensor::full({2, 3}, -inf, DType::f64), true);
  const Variable nothing = softmax(dead, 1), low = logsumexp(dead, 1);
  EXPECT_EQ(nothing.value().to_vector<double>(), std::vector<double>(6, 0));
  EXPECT_EQ(low.value().to_vector<double>(), std::vector<double>(2, -inf));
  backward({nothing, low},
           {Tensor::full({2, 3}, 1, DType::f64), Tensor::full({2, 1}, 1, DType::f64)});
  EXPECT_EQ(dead.grad().to_vector<double>(), std::vector<double>(6, 0));

  EXPECT_TRUE(std::isnan(max(Variable(Tensor::from(std::vector<double>{1, nan, 2}, {3})), 0)
                             .value()
                             .data<double>()[0]));
  const std::vector<double> far =
      softplus(Variable(Tensor::from(std::vector<double>{-1000, 1000, nan, inf}, {4})))
          .value()
          .to_vector<double>();
  EXPECT_EQ(far[0], 0);
  EXPECT_EQ(far[1], 1000);
  EXPECT_TRUE(std::isnan(far[2]));
  EXPECT_EQ(far[3], inf);
}

// The logarithm of sums rounds to 40.75 in bf16, of which the slopes would be 0.47.
TEST(Composing, SlopesOfLogsumexpAddUpInBf16) {
  const Variable x(Tensor::full({2}, 40, DType::bf16), true);
  backward({logsumexp(x, 0)}, {Tensor::full({1}, 1, DType::bf16)});
  EXPECT_EQ(x.grad().to(DType::f64).to_vector<double>(), (std::vector<double>{0.5, 0.5}));
}

// As those of bf16 parameters, whose gradients are kept in f32.
TEST(Composing, SlicesAddToGradientsOfAnotherType) {
  Variable x(Tensor::full({2, 3}, 1, DType::bf16), true);
  x.set_grad(Tensor::zeros({2, 3}));
  const Tensor ones = Tensor::full({2, 1}, 1, DType::bf16);
  backward({slice(x, 1, 1, 2), slice(x, 1, 1, 2), slice(x, 1, 2, 3)}, {ones, ones, ones});
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0, 2, 1, 0, 2, 1}));
}

TEST(Composing, EqualMaximaGiveTheirGradientToTheFirst) {
  const Variable x(Tensor::from(std::vector<double>{2, 3, 3}, {3}), true);
  backward({max(x, 0)}, {Tensor::full({1}, 1, DType::f64)});
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 1, 0}));
}

TEST(Composing, EmptyDimensions) {
  const Variable none(Tensor::zeros({2, 0, 3}, DType::f64), true);
  const Variable total = sum(none, 1);
  EXPECT_EQ(total.value().to_vector<double>(), std::vector<double>(6, 0));
  EXPECT_EQ(softmax(none, 1).value().elements(), 0);
  EXPECT_EQ(add(none, none).value().elements(), 0);
  EXPECT_EQ(permute(none, {1, 0, 2}).shape(), Shape({0, 2, 3}));
  EXPECT_EQ(concatenate({none, none}, 1).value().elements(), 0);
  backward({total}, {Tensor::full({2, 1, 3}, 1, DType::f64)});
  EXPECT_EQ(none.grad().elements(), 0);
}

TEST(Composing, RefusesWhatDoesNotFit) {
  const Variable x(Tensor::zeros({2, 3, 4})), y(Tensor::zeros({2, 4, 3})),
      narrow(Tensor::zeros({2, 3, 4}, DType::bf16));
  const Tensor index = Tensor::from(std::vector<int32_t>{0, 3}, {2, 1});
  EXPECT_THROW(add(x, y), Error);
  EXPECT_THROW(divide(x, narrow), Error);
  EXPECT_THROW(permute(x, {0, 1}), Error);
  EXPECT_THROW(permute(x, {0, 1, 1}), Error);
  EXPECT_THROW(permute(x, {0, 1, 3}), Error);
  EXPECT_THROW(slice(x, 1, 2, 4), Error);
  EXPECT_THROW(slice(x, 3, 0, 1), Error);
  EXPECT_THROW(concatenate({x, y}, 0), Error);
  EXPECT_THROW(concatenate({x, narrow}, 0), Error);
  EXPECT_THROW(expand(x, {3, 4}), Error);
  EXPECT_THROW(expand(x, {2, 3, 5}), Error);
  EXPECT_THROW(sum(x, -4), Error);
  EXPECT_THROW(max(slice(x, 1, 0, 0), 1), Error);
  EXPECT_THROW(mean(slice(x, 1, 0, 0), 1), Error);
  EXPECT_THROW(matmul(x, x), Error);
  EXPECT_THROW(matmul(x, narrow, Transpose::no, Transpose::yes), Error);
  EXPECT_THROW(unit_triangular_solve(x, x), Error);
  EXPECT_THROW(masked_fill(x, Tensor::zeros({3}, DType::u8), 0), Error);
  EXPECT_THROW(gather(x, index), Error);  // 3 is beyond the 3 rows
  EXPECT_THROW(scatter_add(x, index, 5), Error);
}

}  // namespace
}  // namespace linnet
