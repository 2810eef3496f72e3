// Recomputed blocks: the same bits as plain ones, nested, with hooks, dropout and several outputs.
#include <gtest/gtest.h>

#include "autograd/arithmetic.h"
#include "autograd/dropout.h"
#include "autograd/linear.h"
#include "autograd/norms.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::same_bits;

struct Model {
  std::vector<Variable> parameters;
  int hooks = 0;

  Model() {
    for (int layer = 0; layer < 3; ++layer) {
      const std::string name = std::to_string(layer);
      parameters.emplace_back(random_tensor({16, 16}, "w" + name, DType::f32), true);
      parameters.emplace_back(random_tensor({16}, "b" + name, DType::f32), true);
      parameters.emplace_back(random_tensor({16}, "g" + name, DType::f32), true);
    }
    for (Variable& parameter : parameters) {
      parameter.set_gradient_hook([this](const Variable&) { ++hooks; });
    }
  }
  std::vector<Variable> of_layer(size_t layer) const {
    return {parameters.begin() + static_cast<int64_t>(3 * layer),
            parameters.begin() + static_cast<int64_t>(3 * layer + 3)};
  }
  Variable layer(size_t number, const Variable& x) const {
    DropoutSpec spec;
    spec.probability = 0.25;
    spec.key = RandomKey{5, 6, number};
    spec.place.examples = Tensor::from(std::vector<int64_t>{3, 8}, {2});
    const std::vector<Variable> p = of_layer(number);
    const Variable branch = linear(norm(x, p[2], p[1], {}), p[0], p[1], Activation::gelu);
    return residual_dropout(x, branch, spec);
  }
};

enum class Mode { plain, each, nested };

std::vector<Tensor> gradients_of(Mode mode, int& hooks) {
  const Model model;
  const Variable x(random_tensor({2, 5, 16}, "x", DType::f32), true);
  Variable h = x;
  const auto one = [&](size_t layer, const Variable& in) {
    return recompute(
        [&model, layer](const std::vector<Variable>& v) {
          return std::vector<Variable>{model.layer(layer, v[0])};
        },
        {in}, model.of_layer(layer))[0];
  };
  if (mode == Mode::nested) {
    h = recompute(
        [&](const std::vector<Variable>& v) {
          return std::vector<Variable>{one(2, one(1, one(0, v[0])))};
        },
        {h}, model.parameters)[0];
  } else {
    for (size_t layer = 0; layer < 3; ++layer) {
      h = mode == Mode::plain ? model.layer(layer, h) : one(layer, h);
    }
  }
  backward({h}, {random_tensor({2, 5, 16}, "dy", DType::f32)});
  std::vector<Tensor> result{h.value(), x.grad()};
  for (const Variable& parameter : model.parameters) result.push_back(parameter.grad());
  hooks = model.hooks;
  return result;
}

TEST(Recompute, GivesTheSameBitsAsPlainBlocksAndCallsHooksOnce) {
  int hooks = 0;
  const std::vector<Tensor> plain = gradients_of(Mode::plain, hooks);
  EXPECT_EQ(hooks, 9);
  for (const Mode mode : {Mode::each, Mode::nested}) {
    const std::vector<Tensor> again = gradients_of(mode, hooks);
    EXPECT_EQ(hooks, 9);
    ASSERT_EQ(again.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(same_bits(again[i], plain[i])) << i;
  }
}

TEST(Recompute, KeepsNoValuesOfTheBlock) {
  const Model model;
  const Variable x(random_tensor({2, 5, 16}, "x", DType::f32), true);
  const size_t before = allocated_bytes({});
  const Variable plain = model.layer(0, x);
  const size_t plain_bytes = allocated_bytes({}) - before;
  const Variable y = recompute(
      [&model](const std::vector<Variable>& v) {
        return std::vector<Variable>{model.layer(0, v[0])};
      },
      {x}, model.of_layer(0))[0];
  EXPECT_EQ(allocated_bytes({}) - before - plain_bytes, y.value().bytes());
}

TEST(Recompute, HandlesUndefinedInputsUnusedOutputsAndRepeatedInputs) {
  const Variable x(random_tensor({4}, "x"), true);
  const auto body = [](const std::vector<Variable>& v) {
    EXPECT_FALSE(v[1].defined());
    return std::vector<Variable>{multiply(v[0], v[2]), scale(v[0], 100), v[2].detach()};
  };
  const std::vector<Variable> y = recompute(body, {x, Variable(), x}, {});
  backward(sum_all(y[0]));
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(x.grad().data<double>()[i], 2 * x.value().data<double>()[i]);
  }
}

TEST(Recompute, WorksWhereBackwardIsCalledWithoutRecording) {
  const Variable x(random_tensor({4}, "x"), true);
  const Variable y = recompute(
      [](const std::vector<Variable>& v) { return std::vector<Variable>{scale(v[0], 3)}; }, {x},
      {})[0];
  const NoGrad off;
  backward({y}, {Tensor::full({4}, 1, DType::f64)});
  ASSERT_TRUE(x.grad().defined());
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(4, 3));
  EXPECT_FALSE(grad_enabled()) << "recording was left on";
}

TEST(Recompute, RunsTheBodyOnceWhenNothingNeedsAGradient) {
  int runs = 0;
  const auto body = [&runs](const std::vector<Variable>& v) {
    ++runs;
    return std::vector<Variable>{scale(v[0], 3)};
  };
  const Variable y = recompute(body, {Variable(random_tensor({4}, "x"))}, {})[0];
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(runs, 1);
}

TEST(Recompute, RefusesParametersThatAreResults) {
  const Variable x(random_tensor({4}, "x"), true);
  const auto body = [](const std::vector<Variable>& v) { return v; };
  EXPECT_THROW(recompute(body, {x}, {scale(x, 2)}), Error);
}

TEST(Recompute, RefusesParametersThatAreNotListed) {
  const Variable x(random_tensor({4}, "x"), true), listed(random_tensor({4}, "a"), true),
      forgotten(random_tensor({4}, "b"), true);
  const auto body = [&](const std::vector<Variable>& v) {
    return std::vector<Variable>{multiply(multiply(v[0], listed), forgotten)};
  };
  EXPECT_THROW(backward(sum_all(recompute(body, {x}, {listed})[0])), Error);
  backward(sum_all(recompute(body, {x}, {listed, forgotten})[0]));
  EXPECT_TRUE(forgotten.grad().defined());
}

}  // namespace
}  // namespace linnet
