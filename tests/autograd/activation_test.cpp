// Activations, gated product and the affine map: values, finite differences, precisions, threads.
#include "autograd/activation.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "autograd/linear.h"
#include "core/sanitizers.h"
#include "core/vector_math.h"
#include "tests/autograd/op_cases.h"

namespace linnet {
namespace {

using test::random_tensor;
using Variables = std::vector<Variable>;

constexpr Activation kAll[] = {Activation::none,      Activation::relu, Activation::gelu,
                               Activation::gelu_tanh, Activation::silu, Activation::sigmoid};

// Random values moved off relu's kink, where finite differences see both sides.
Tensor off_kink(const Shape& shape, const char* name) {
  const Tensor x = random_tensor(shape, name);
  for (int64_t i = 0; i < x.elements(); ++i) {
    double& v = x.data<double>()[i];
    if (std::abs(v) < 1e-3) v = 0.5;
  }
  return x;
}

TEST(Activations, ValuesFollowTheirDefinitions) {
  const Variable x(Tensor::from(std::vector<double>{-3, -0.5, 0, 0.5, 3}, {5}));
  for (int64_t i = 0; i < 5; ++i) {
    const double v = x.value().data<double>()[i];
    const auto at = [&](Activation a) { return activate(x, a).value().data<double>()[i]; };
    EXPECT_EQ(at(Activation::none), v);
    EXPECT_EQ(at(Activation::relu), v > 0 ? v : 0);
    EXPECT_NEAR(at(Activation::gelu), 0.5 * v * std::erfc(-v / std::sqrt(2)), 1e-15);
    EXPECT_NEAR(
        at(Activation::gelu_tanh),
        0.5 * v * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v))),
        1e-15);
    EXPECT_NEAR(at(Activation::silu), v / (1 + std::exp(-v)), 1e-15);
    EXPECT_NEAR(at(Activation::sigmoid), 1 / (1 + std::exp(-v)), 1e-15);
  }
}

TEST(Activations, NamesGoToKindsAndUnknownOnesAreRefused) {
  EXPECT_EQ(activation_from_name("none"), Activation::none);
  EXPECT_EQ(activation_from_name("relu"), Activation::relu);
  EXPECT_EQ(activation_from_name("gelu"), Activation::gelu);
  EXPECT_EQ(activation_from_name("gelu_tanh"), Activation::gelu_tanh);
  EXPECT_EQ(activation_from_name("silu"), Activation::silu);
  EXPECT_EQ(activation_from_name("sigmoid"), Activation::sigmoid);
  EXPECT_THROW(activation_from_name("GELU"), UsageError);
}

TEST(Activations, GradientsAgreeWithFiniteDifferences) {
  for (const Activation a : kAll) {
    EXPECT_TRUE(test::gradients_agree(
        [a](const Variables& v) { return Variables{activate(v[0], a)}; }, {off_kink({3, 7}, "x")}))
        << static_cast<int>(a);
  }
  EXPECT_TRUE(
      test::gradients_agree([](const Variables& v) { return Variables{silu_multiply(v[0], v[1])}; },
                            {random_tensor({3, 7}, "gate"), random_tensor({3, 7}, "up")}));
}

TEST(Activations, OtherPrecisionsAgreeWithDouble) {
  for (const Activation a : kAll) {
    // vector_exp and vector_erf are good to 7 roundings of f32, then a few operations.
    EXPECT_TRUE(
        test::precisions_agree([a](const Variables& v) { return Variables{activate(v[0], a)}; },
                               {off_kink({40, 33}, "x")}, 12))
        << static_cast<int>(a);
  }
  EXPECT_TRUE(test::precisions_agree(
      [](const Variables& v) { return Variables{silu_multiply(v[0], v[1])}; },
      {random_tensor({40, 33}, "gate"), random_tensor({40, 33}, "up")}, 12));
}

TEST(Activations, AreFiniteFarOutAndPassNanOn) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const Activation a : kAll) {
      for (const double far : {-1e30, -200.0, -90.0, 90.0, 200.0, 1e30}) {
        const Variable x(Tensor::full({1}, far, dtype), true);
        const Variable y = activate(x, a);
        backward({y}, {Tensor::full({1}, 1, dtype)});
        const double expected = a == Activation::sigmoid           ? (far > 0 ? 1 : 0)
                                : far > 0 || a == Activation::none ? x.value().item()
                                                                   : 0;
        EXPECT_NEAR(y.value().item(), expected, 1e-35) << far << " " << static_cast<int>(a);
        const double slope = a == Activation::none                 ? 1
                             : a == Activation::sigmoid || far < 0 ? 0
                                                                   : 1;
        EXPECT_NEAR(x.grad().item(), slope, 1e-35) << far << " " << static_cast<int>(a);
      }
      EXPECT_TRUE(
          std::isnan(activate(Variable(Tensor::full({1}, std::nan(""), dtype)), a).value().item()));
    }
  }
}

TEST(Activations, InPlaceGivesTheSameBits) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const Activation a : kAll) {
      if (a == Activation::none) continue;
      const Tensor x = random_tensor({5, 37}, "x", dtype);
      const Tensor dy = random_tensor({5, 37}, "dy", dtype);
      const Tensor bias = random_tensor({37}, "bias", dtype);
      const Tensor y = Tensor::empty(x.shape(), dtype), dx = Tensor::empty(x.shape(), dtype);
      activation_forward(x, a, y);
      activation_backward(x, dy, a, dx);
      const Tensor in_place = x.clone(), gradient = dy.clone();
      activation_forward(in_place, a, in_place);
      activation_backward(x, gradient, a, gradient);
      EXPECT_TRUE(test::same_bits(in_place, y));
      EXPECT_TRUE(test::same_bits(gradient, dx));
      const Tensor before = x.clone(), after = Tensor::empty(x.shape(), dtype), both = x.clone();
      bias_activation_forward(before, bias, a, after);
      bias_activation_forward(both, bias, a, both);
      EXPECT_TRUE(test::same_bits(both, after));
      activation_forward(before, a, y);
      EXPECT_TRUE(test::same_bits(after, y)) << "backward receives the biased input";
    }
  }
}

TEST(Linear, GradientsAgreeWithFiniteDifferences) {
  for (const Activation a : kAll) {
    for (const bool with_bias : {true, false}) {
      const auto function = [a](const Variables& v) {
        return Variables{linear(v[0], v[1], v[2], a)};
      };
      EXPECT_TRUE(test::gradients_agree(function,
                                        {random_tensor({2, 3, 5}, "x"), random_tensor({4, 5}, "w"),
                                         with_bias ? random_tensor({4}, "b") : Tensor()}))
          << static_cast<int>(a) << with_bias;
    }
  }
}

TEST(Linear, FeedForwardLayersAreTwoLinearOnes) {
  for (const bool with_bias : {true, false}) {
    const std::vector<Tensor> inputs = {random_tensor({2, 3, 5}, "x"), random_tensor({4, 5}, "in"),
                                        with_bias ? random_tensor({4}, "in bias") : Tensor(),
                                        random_tensor({3, 4}, "out"),
                                        with_bias ? random_tensor({3}, "out bias") : Tensor()};
    const auto at_once = [](const Variables& v) {
      return Variables{gelu_tanh_feed_forward(v[0], v[1], v[2], v[3], v[4])};
    };
    const auto one_by_one = [](const Variables& v) {
      return Variables{linear(linear(v[0], v[1], v[2], Activation::gelu_tanh), v[3], v[4])};
    };
    EXPECT_TRUE(test::gradients_agree(at_once, inputs)) << with_bias;
    const test::Run run = test::run_in(DType::f32, at_once, inputs);
    const test::Run expected = test::run_in(DType::f32, one_by_one, inputs);
    EXPECT_TRUE(test::same_bits(run.outputs[0], expected.outputs[0])) << with_bias;
    ASSERT_EQ(run.gradients.size(), expected.gradients.size());
    for (size_t i = 0; i < run.gradients.size(); ++i) {
      EXPECT_TRUE(test::same_bits(run.gradients[i], expected.gradients[i])) << with_bias << i;
    }
    NoGrad off;
    std::vector<Variable> values;
    for (const Tensor& input : inputs) {
      values.push_back(input.defined() ? Variable(input.to(DType::bf16).to(DType::f32))
                                       : Variable());
    }
    EXPECT_TRUE(test::same_bits(at_once(values)[0].value(), run.outputs[0])) << with_bias;
  }
  // One weight twice, and an input that needs no gradient.
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) {
        const Variable x(random_tensor({3, 4}, "x"));
        return Variables{gelu_tanh_feed_forward(x, v[0], v[1], v[0], v[1])};
      },
      {random_tensor({4, 4}, "w"), random_tensor({4}, "b")}));
}

TEST(Linear, TheSameWeightTwiceAndTheSameInputAsWeight) {
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) { return Variables{linear(linear(v[0], v[1]), v[1])}; },
      {random_tensor({3, 4}, "x"), random_tensor({4, 4}, "w")}));
  EXPECT_TRUE(
      test::gradients_agree([](const Variables& v) { return Variables{linear(v[0], v[0])}; },
                            {random_tensor({4, 4}, "x")}));
}

TEST(Linear, OtherPrecisionsAgreeWithDouble) {
  for (const Activation a : kAll) {
    // bf16 rounds the sum before the activation and the gradient after it; the sums themselves are
    // in f32 over at most 96 terms.
    EXPECT_TRUE(test::precisions_agree(
        [a](const Variables& v) { return Variables{linear(v[0], v[1], v[2], a)}; },
        {off_kink({24, 48}, "x"), random_tensor({96, 48}, "w", DType::f64, 0.15),
         random_tensor({96}, "b")},
        a == Activation::relu ? 300 : 64))
        << static_cast<int>(a);
  }
}

TEST(Linear, RefusesWeightsThatDoNotFit) {
  const Variable x(Tensor::zeros({2, 3}));
  EXPECT_THROW(linear(x, Variable(Tensor::zeros({4, 2}))), Error);
  EXPECT_THROW(linear(x, Variable(Tensor::zeros({3}))), Error);
  EXPECT_THROW(linear(x, Variable(Tensor::zeros({4, 3})), Variable(Tensor::zeros({3}))), Error);
  EXPECT_THROW(linear(x, Variable(Tensor::zeros({4, 3}, DType::bf16))), Error);
  const Variable weight(Tensor::zeros({4, 3}), true);
  EXPECT_THROW(gelu_tanh_feed_forward(x, weight, {}, Variable(Tensor::zeros({2, 3})), {}), Error);
}

TEST(Activations, ThreadsDoNotChangeABit) {
  for (const Activation a : kAll) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      EXPECT_TRUE(test::threads_agree(
          dtype, [a](const Variables& v) { return Variables{activate(v[0], a)}; },
          {random_tensor({70, 1001}, "x")}));
      EXPECT_TRUE(test::threads_agree(
          dtype, [](const Variables& v) { return Variables{silu_multiply(v[0], v[1])}; },
          {random_tensor({70, 1001}, "gate"), random_tensor({70, 1001}, "up")}));
    }
  }
}

// The seconds of a call, the least of many.
double seconds(const std::function<void()>& call) {
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 50; ++run) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count());
  }
  return least;
}

// e^x by a call, which keeps its loop scalar.
[[gnu::noinline]] float exp_by_call(float x) {
  return vector_exp(x);
}

// A call inside a loop that the compiler does not inline makes it 15 times as slow, in silence.
TEST(Activations, TakeLessTimeThanOneExponentialByItself) {
#if !defined(__OPTIMIZE__)
  GTEST_SKIP() << "without optimisation no loop is in vectors";
#endif
  if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "sanitizers instrument every access";
  const Tensor x = random_tensor({8192}, "x").to(DType::f32), y = x.clone();
  const double scalar = seconds([&] {
    for (int64_t i = 0; i < x.elements(); ++i) y.data<float>()[i] = exp_by_call(x.data<float>()[i]);
  });
  for (const Activation a : kAll) {
    if (a == Activation::none) continue;
    const double forward = seconds([&] { activation_forward(x, a, y); });
    EXPECT_TRUE(forward < scalar / 2) << static_cast<int>(a) << ": " << forward / scalar;
    const double backward = seconds([&] { activation_backward(x, x, a, y); });
    EXPECT_TRUE(backward < scalar / 2) << static_cast<int>(a) << ": " << backward / scalar;
  }
}

}  // namespace
}  // namespace linnet
