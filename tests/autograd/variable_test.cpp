// The tape: order, sharing of gradients, buffers, hooks, long chains, freeing, recording off.
#include "autograd/variable.h"

#include <gtest/gtest.h>

#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/linear.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::message_of;
using test::random_tensor;

Variable leaf(const Shape& shape, const char* name, DType dtype = DType::f64) {
  return Variable(random_tensor(shape, name, dtype), true);
}

// a * b whose backward requests both targets before it writes either of them.
Variable product_by_targets(const Variable& a, const Variable& b) {
  const Tensor y = a.value().clone();
  for (int64_t i = 0; i < y.elements(); ++i) y.data<double>()[i] *= b.value().data<double>()[i];
  return record("product", y, {a, b}, [av = a.value(), bv = b.value()](Gradients& gradients) {
    const GradientTarget da = gradients.target(0);
    const GradientTarget db = gradients.target(1);
    const double* dy = gradients.output().data<double>();
    for (int64_t i = 0; i < av.elements(); ++i) {
      const auto write = [&](const GradientTarget& target, double value) {
        if (target.mode == GradientWrite::ignore) return;
        double& to = target.buffer.data<double>()[i];
        to = target.mode == GradientWrite::accumulate ? to + value : value;
      };
      write(da, dy[i] * bv.data<double>()[i]);
      write(db, dy[i] * av.data<double>()[i]);
    }
  });
}

TEST(Backward, AccumulatesInLeavesOverSeveralPasses) {
  const Variable x = leaf({3}, "x");
  backward(sum_all(scale(x, 2)));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{2, 2, 2}));
  backward(sum_all(scale(x, 3)));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{5, 5, 5}));
}

TEST(Backward, WantsAScalarOrOneSeedAnOutput) {
  const Variable x = leaf({3}, "x");
  EXPECT_THROW(backward(scale(x, 2)), Error);
  EXPECT_THROW(backward({x}, {}), Error);
  EXPECT_THROW(backward({scale(x, 2)}, {Tensor::zeros({4}, DType::f64)}), Error);
}

TEST(Backward, SecondPassOverAFreedGraphIsAnError) {
  const Variable x = leaf({3}, "x");
  const Variable middle = scale(x, 2);
  const Variable loss = sum_all(middle);
  backward(loss);
  EXPECT_NE(message_of<Error>([&] { backward(loss); }).find("forward"), std::string::npos);
  EXPECT_THROW(backward(sum_all(middle)), Error) << "also through another root";
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{2, 2, 2}));
}

TEST(Backward, TheSameVariableTwiceGetsBothGradients) {
  const Variable x = leaf({4}, "x");
  backward(sum_all(add(x, x)));
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(4, 2));
  for (const bool is_leaf : {true, false}) {
    for (const bool buffered : {true, false}) {
      Variable y = leaf({4}, "y");
      if (buffered) y.set_grad(Tensor::zeros({4}, DType::f64));  // else the first one overwrites
      const Variable in = is_leaf ? y : scale(y, 1);
      backward(sum_all(product_by_targets(in, in)));
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(y.grad().data<double>()[i], 2 * y.value().data<double>()[i]) << is_leaf;
      }
    }
  }
}

TEST(Backward, OneGradientHandedToTwoInputsIsNotShared) {
  const Variable a = leaf({4}, "a");
  const Variable b = leaf({4}, "b");
  const Variable inner_a = scale(a, 1);
  const Variable inner_b = scale(b, 1);
  // add() hands the same tensor to both; afterwards inner_a receives more.
  const Variable other = scale(inner_a, 10);
  const Variable sum = add(inner_a, inner_b);
  backward({sum, other}, {Tensor::full({4}, 1, DType::f64), Tensor::full({4}, 1, DType::f64)});
  EXPECT_EQ(a.grad().to_vector<double>(), std::vector<double>(4, 11));
  EXPECT_EQ(b.grad().to_vector<double>(), std::vector<double>(4, 1));
  EXPECT_FALSE(a.grad().shares_storage(b.grad()));
}

TEST(Backward, LeavesDoNotAliasSeedsOrEachOther) {
  const Variable a = leaf({2, 2}, "a");
  const Variable b = leaf({4}, "b");
  const Tensor seed = Tensor::full({4}, 1, DType::f64);
  backward({add(reshape(a, {4}), b), b}, {seed, seed});
  EXPECT_EQ(seed.to_vector<double>(), std::vector<double>(4, 1)) << "the seed was written to";
  EXPECT_EQ(a.grad().to_vector<double>(), std::vector<double>(4, 1));
  EXPECT_EQ(b.grad().to_vector<double>(), std::vector<double>(4, 2));
  EXPECT_FALSE(a.grad().shares_storage(seed));
  EXPECT_FALSE(b.grad().shares_storage(seed));
}

TEST(Backward, ReshapedViewsOfOneVariableAddUp) {
  const Variable x = leaf({2, 3}, "x");
  const Variable h = scale(x, 1);
  const Variable first = reshape(h, {6});
  const Variable second = reshape(h, {3, 2});
  backward({first, second, first},
           {Tensor::full({6}, 1, DType::f64), Tensor::full({3, 2}, 2, DType::f64),
            Tensor::full({6}, 4, DType::f64)});
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(6, 7));
}

TEST(Backward, AFixedBufferCollectsInItsOwnType) {
  const Variable x(Tensor::full({8}, 1, DType::bf16), true);
  Variable same = x;
  const Tensor buffer = Tensor::zeros({8}, DType::f32);
  same.set_grad(buffer);
  // 256 + 1 is not a bf16: only an f32 sum keeps it.
  backward({scale(x, 256), scale(x, 1)},
           {Tensor::full({8}, 1, DType::bf16), Tensor::full({8}, 1, DType::bf16)});
  EXPECT_EQ(buffer.to_vector<float>(), std::vector<float>(8, 257));
  EXPECT_TRUE(x.grad().shares_storage(buffer));
  EXPECT_THROW(same.set_grad(Tensor::zeros({4})), Error);
  EXPECT_THROW(same.set_grad(Tensor::zeros({8}, DType::i32)), Error);
  same.set_grad({});
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, WeightGradientsOfBf16ModelsAccumulateInF32Buffers) {
  const Tensor x = random_tensor({64, 16}, "x", DType::bf16);
  Variable weight(random_tensor({8, 16}, "w", DType::bf16), true);
  Variable bias(random_tensor({8}, "b", DType::bf16), true);
  weight.set_grad(Tensor::zeros({8, 16}));
  bias.set_grad(Tensor::zeros({8}));
  Variable weight64(weight.value().to(DType::f64), true);
  Variable bias64(bias.value().to(DType::f64), true);
  for (int pass = 0; pass < 2; ++pass) {
    const Tensor dy = random_tensor({64, 8}, pass == 0 ? "d0" : "d1", DType::bf16);
    backward({linear(Variable(x), weight, bias)}, {dy});
    backward({linear(Variable(x.to(DType::f64)), weight64, bias64)}, {dy.to(DType::f64)});
  }
  EXPECT_EQ(weight.grad().dtype(), DType::f32);
  // Products of bf16 are exact in f32: only the 128 additions of each sum round.
  EXPECT_TRUE(test::close(weight.grad(), weight64.grad(), 128 * 0x1p-24 * 128));
  EXPECT_TRUE(test::close(bias.grad(), bias64.grad(), 128 * 0x1p-24 * 128));
}

TEST(Backward, HooksRunOncePerPassWhenTheGradientIsComplete) {
  Variable shared = leaf({2}, "shared");
  Variable early = leaf({2}, "early");
  std::vector<std::string> calls;
  shared.set_gradient_hook([&](const Variable& v) {
    EXPECT_TRUE(v.same(shared));
    EXPECT_EQ(v.grad().to_vector<double>(), std::vector<double>(2, calls.size() < 2 ? 7 : 14));
    calls.push_back("shared");
  });
  early.set_gradient_hook([&](const Variable&) { calls.push_back("early"); });
  for (int pass = 0; pass < 2; ++pass) {
    // `early` is used last, so its gradient is complete first.
    const Variable h = add(scale(shared, 3), scale(shared, 4));
    backward(sum_all(add(h, early)));
  }
  EXPECT_EQ(calls, (std::vector<std::string>{"early", "shared", "early", "shared"}));
}

TEST(Backward, HooksAlsoRunWhereAnOperationPassedNothingOn) {
  Variable x = leaf({2}, "x");
  Variable z = leaf({2}, "z");
  int calls = 0;
  x.set_gradient_hook([&](const Variable& v) {
    ++calls;
    EXPECT_TRUE(v.grad().defined());
  });
  const Variable blocked =
      record("stop", z.value().clone(), {scale(x, 5), z}, [](Gradients& gradients) {
        gradients.add(1, gradients.output());  // nothing for input 0
      });
  backward(sum_all(add(blocked, scale(x, 2))));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(2, 2));
}

TEST(Backward, VeryLongChainsNeedNoStack) {
  const Variable x = leaf({1}, "x");
  Variable h = x;
  for (int i = 0; i < 200000; ++i) h = i % 2 == 0 ? scale(h, 1) : weighted_sum(h, 0.5, h, 0.5);
  backward({h}, {Tensor::full({1}, 1, DType::f64)});
  EXPECT_EQ(x.grad().item(), 1);
}

TEST(Backward, VeryLongChainsAreDestroyedWithoutBackward) {
  const Variable x = leaf({1}, "x");
  {
    Variable h = x;  // handles in the node and in its closure
    for (int i = 0; i < 200000; ++i) h = multiply(h, h);
  }
  {
    Variable h = x;
    for (int i = 0; i < 200000; ++i) {
      h = recompute([](const std::vector<Variable>& in) { return in; }, {h}, {})[0];
    }
  }
  const std::vector<Variable> both =
      record_many("two", {x.value().clone(), x.value().clone()}, {x}, [](Gradients&) {});
  {
    Variable h = both[0], g = both[1];  // nodes with two outputs, both used
    for (int i = 0; i < 100000; ++i) {
      const std::vector<Variable> next =
          record_many("two", {h.value().clone(), g.value().clone()}, {h, g}, [](Gradients&) {});
      h = next[0];
      g = next[1];
    }
  }
}

TEST(Backward, ValuesOfTheGraphAreFreedOnTheWay) {
  const Variable x = leaf({1000}, "x");
  size_t held_at_the_end = 0;
  Variable first = record("probe", x.value().clone(), {x}, [&](Gradients& gradients) {
    held_at_the_end = allocated_bytes({});
    gradients.add(0, gradients.output());
  });
  Variable h = first;
  for (int i = 0; i < 50; ++i) h = tanh(h);
  const Variable loss = sum_all(h);
  h = {};
  first = {};
  const size_t before = allocated_bytes({});
  backward(loss);
  EXPECT_LT(held_at_the_end, before - 40 * 8000) << "49 values of 8000 bytes had no other user";
}

TEST(Backward, ValuesThatItDoesNotReadAreFreedWithTheirLastHandle) {
  const Variable x = leaf({1000}, "x");
  const size_t before = allocated_bytes({});
  Variable h = x;
  for (int i = 0; i < 50; ++i) h = scale(h, 2);
  EXPECT_LT(allocated_bytes({}), before + 2 * 8000) << "49 values of 8000 bytes have no user";
  // The graph is whole all the same, also where one value is two inputs.
  backward(sum_all(weighted_sum(h, 1, h, 2)));
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(x.grad().data<double>()[i], 3 * std::exp2(50));
}

TEST(Recording, IsOffInsideNoGradAndForConstants) {
  const Variable x = leaf({2}, "x");
  {
    const NoGrad off;
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE(scale(x, 2).requires_grad());
    {
      const NoGrad not_off(false);
      EXPECT_FALSE(grad_enabled()) << "cannot be switched on again inside";
    }
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_TRUE(scale(x, 2).requires_grad());
  EXPECT_FALSE(scale(x.detach(), 2).requires_grad());
  EXPECT_FALSE(needs_grad({Variable(), Variable(Tensor::zeros({1}))}));
  EXPECT_THROW(Variable(Tensor::zeros({1}, DType::i32), true), Error);
  const Variable result = scale(x, 2);
  EXPECT_THROW(Variable(result).set_value(Tensor::zeros({2})), Error);
  EXPECT_THROW(Variable(result).set_grad(Tensor::zeros({2})), Error);
  EXPECT_THROW(Variable(x).set_value(Tensor::zeros({2}, DType::i32)), Error);
  EXPECT_THROW(Variable().value(), Error);
}

TEST(Backward, OutputsThatNothingUsedReadAsZeros) {
  const Variable x = leaf({2}, "x");
  const std::vector<Variable> outputs =
      record_many("split", {x.value().clone(), x.value().clone()}, {x}, [](Gradients& gradients) {
        EXPECT_TRUE(gradients.has_output(0));
        EXPECT_FALSE(gradients.has_output(1));
        EXPECT_EQ(gradients.output(1).to_vector<double>(), std::vector<double>(2, 0));
        gradients.add(0, gradients.output(0));
      });
  backward(sum_all(outputs[0]));
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
}  // namespace linnet
