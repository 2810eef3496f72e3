// Optimizer updates against the published formulas in double, and bit-for-bit resumption.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/random.h"
#include "core/threads.h"
#include "optim/optim_config.h"

namespace linnet {
namespace {

constexpr int64_t kSize = 100003;  // several blocks and a ragged tail

Tensor random_flat(uint64_t step, DType dtype = DType::f32) {
  std::vector<double> values(kSize);
  const RandomKey key{7, step, 0};
  for (size_t i = 0; i < values.size(); ++i) values[i] = key.normal(i);
  return Tensor::from(values, {kSize}).to(dtype);
}

OptimConfig config_of(OptimizerKind kind) {
  OptimConfig config;
  config.kind = kind;
  config.weight_decay = 0.1;
  return config;
}

// One scalar followed through the formulas, element by element.
struct Scalar {
  double w, m = 0, v = 0;
};

void reference_step(OptimizerKind kind, Scalar& s, double g, double lr, double previous_lr,
                    double decay, int t) {
  const double mu = 0.9;
  switch (kind) {
    case OptimizerKind::adam:
    case OptimizerKind::adamw: {
      if (kind == OptimizerKind::adam) g += decay * s.w;
      s.m = 0.9 * s.m + 0.1 * g;
      s.v = 0.999 * s.v + 0.001 * g * g;
      const double m_hat = s.m / (1 - std::pow(0.9, t)), v_hat = s.v / (1 - std::pow(0.999, t));
      const double shrink = kind == OptimizerKind::adamw ? lr * decay * s.w : 0;
      s.w = s.w - lr * m_hat / (std::sqrt(v_hat) + 1e-8) - shrink;
      return;
    }
    case OptimizerKind::sgd:
      s.m = mu * s.m + g + decay * s.w;
      s.w -= lr * s.m;
      return;
    case OptimizerKind::nag: {
      const double r = t == 1 ? 1 : lr / previous_lr;
      s.w = (1 - lr * decay) * s.w + mu * mu * r * s.m - (1 + mu) * lr * g;
      s.m = mu * r * s.m - lr * g;
      return;
    }
  }
}

class Rules : public ::testing::TestWithParam<OptimizerKind> {};

TEST_P(Rules, FollowTheFormulas) {
  const OptimConfig config = config_of(GetParam());
  const std::vector<ParameterSpan> layout = {{"a.weight", 0, 40000}, {"a.bias", 40010, kSize}};
  OptimConfig scaled = config;
  scaled.groups = {{"a.bias", {}, 0.5}};
  const auto optimizer = make_optimizer(scaled, layout, kSize, DType::f64);
  const Tensor weights = random_flat(0, DType::f64);
  const std::vector<double> initial = weights.to_vector<double>();
  std::vector<Scalar> expected(kSize);
  for (size_t i = 0; i < expected.size(); ++i) expected[i].w = initial[i];
  const double rates[] = {1e-2, 5e-2, 2e-2, 3e-2};
  for (int t = 1; t <= 4; ++t) {
    const Tensor gradients = random_flat(static_cast<uint64_t>(t), DType::f64);
    const double* g = gradients.data<double>();
    optimizer->step(weights, gradients, {.lr = rates[t - 1], .gradient_scale = 0.25});
    for (int64_t i = 0; i < kSize; ++i) {
      if (i >= 40000 && i < 40010) continue;
      const double scale = i < 40000 ? 1 : 0.5;
      reference_step(GetParam(), expected[static_cast<size_t>(i)], 0.25 * g[i],
                     scale * rates[t - 1], t > 1 ? scale * rates[t - 2] : 0, i < 40000 ? 0.1 : 0,
                     t);
    }
  }
  EXPECT_EQ(optimizer->updates(), 4);
  const double* w = weights.data<double>();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(std::abs(w[i] - expected[i].w) <= 1e-13) << "element " << i << ": " << w[i];
  }
  for (size_t i = 40000; i < 40010; ++i) EXPECT_EQ(w[i], initial[i]) << "outside every group";
}

TEST_P(Rules, ResumeBitForBit) {
  const OptimConfig config = config_of(GetParam());
  const std::vector<ParameterSpan> layout = {{"a.weight", 0, kSize}};
  const auto rate = [](uint64_t step) { return 1e-3 * static_cast<double>(step + 1); };
  const auto run = [&](Optimizer& optimizer, const Tensor& weights, uint64_t from, uint64_t to) {
    for (uint64_t step = from; step < to; ++step) {
      optimizer.step(weights, random_flat(100 + step), {.lr = rate(step)});
    }
  };
  const auto whole = make_optimizer(config, layout, kSize);
  const Tensor straight = random_flat(0);
  run(*whole, straight, 0, 7);

  const auto first = make_optimizer(config, layout, kSize);
  const Tensor weights = random_flat(0);
  run(*first, weights, 0, 3);
  StateTensors saved;
  for (const auto& [name, tensor] : first->state()) saved[name] = tensor.clone();
  run(*first, weights.clone(), 3, 4);  // updates after the save must not change it
  const auto second = make_optimizer(config, layout, kSize);
  second->load_state(saved);
  run(*second, weights, 3, 7);
  EXPECT_EQ(weights.to_vector<float>(), straight.to_vector<float>());
  EXPECT_EQ(second->updates(), 7);
}

TEST_P(Rules, ThreadCountDoesNotChangeABit) {
  const auto run = [&](int threads) {
    set_thread_count(threads);
    const auto optimizer = make_optimizer(config_of(GetParam()), {{"a.weight", 0, kSize}}, kSize);
    const Tensor weights = random_flat(0);
    for (uint64_t step = 0; step < 3; ++step) {
      optimizer->step(weights, random_flat(10 + step), {.lr = 1e-2});
    }
    return weights.to_vector<float>();
  };
  const int before = thread_count();
  const std::vector<float> one = run(1), three = run(3);
  set_thread_count(before);
  EXPECT_EQ(one, three);
}

std::string kind_name(const ::testing::TestParamInfo<OptimizerKind>& info) {
  const char* names[] = {"adamw", "adam", "sgd", "nag"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, Rules,
                         ::testing::Values(OptimizerKind::adamw, OptimizerKind::adam,
                                           OptimizerKind::sgd, OptimizerKind::nag),
                         kind_name);

// The released update equals textbook Nesterov whose iterate is looked at after its momentum step:
// velocity = mu r velocity - lr g(x + mu r velocity).
TEST(Nag, IsTextbookNesterovAtTheLookAheadPoint) {
  const double mu = 0.99, target = 3;
  const double rates[] = {0.05, 0.05, 0.05, 0.05, 0.05, 0.05};
  Nag optimizer({{0, 1, 0, 1}}, 1, DType::f64, mu);
  const Tensor weight = Tensor::full({1}, 1.0, DType::f64);
  double x = 1, velocity = 0;
  for (const double lr : rates) {
    const double look_ahead = x + mu * velocity;
    EXPECT_NEAR(weight.item(), look_ahead, 1e-13);
    const Tensor gradient = Tensor::full({1}, weight.item() - target, DType::f64);
    optimizer.step(weight, gradient, {.lr = lr});
    velocity = mu * velocity - lr * (look_ahead - target);
    x += velocity;
  }
}

TEST(Adam, TakesBeta1FromTheSchedule) {
  Adam optimizer({{0, 1, 0, 1}}, 1, DType::f64, {});
  const Tensor weight = Tensor::zeros({1}, DType::f64);
  const Tensor gradient = Tensor::full({1}, 2, DType::f64);
  optimizer.step(weight, gradient, {.lr = 0.1, .beta1 = 0.5});
  EXPECT_NEAR(optimizer.state().at("m").item(), 0.5 * 2, 1e-15);
  EXPECT_NEAR(weight.item(), -0.1, 1e-8);  // bias correction uses the same beta1
}

TEST(Optimizer, RefusesWhatItCannotDo) {
  EXPECT_THROW(Sgd({{0, 5, 0, 1}, {4, 8, 0, 1}}, 8, DType::f32, 0), Error);  // overlap
  EXPECT_THROW(Sgd({{0, 9, 0, 1}}, 8, DType::f32, 0), Error);                // past the end
  EXPECT_THROW(Sgd({{0, 8, 0, 1}}, 8, DType::bf16, 0), Error);
  Sgd sgd({{0, 8, 0, 1}}, 8, DType::f32, 0.9);
  const Tensor good = Tensor::zeros({8});
  EXPECT_THROW(sgd.step(good, Tensor::zeros({7}), {.lr = 1}), Error);
  EXPECT_THROW(sgd.step(Tensor::zeros({8}, DType::f64), good, {.lr = 1}), Error);
  EXPECT_THROW(sgd.step(good, good, {.lr = std::nan("")}), Error);
  EXPECT_THROW(sgd.step(good, good, {.lr = 1, .beta1 = 0.9}), Error);
  EXPECT_EQ(sgd.updates(), 0);
}

TEST(Optimizer, RefusesAnotherKindsState) {
  Sgd sgd({{0, 8, 0, 1}}, 8, DType::f32, 0.9);
  Nag nag({{0, 8, 0, 1}}, 8, DType::f32, 0.9);
  Sgd smaller({{0, 4, 0, 1}}, 4, DType::f32, 0.9);
  EXPECT_THAT([&] { sgd.load_state(nag.state()); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("'previous_lr'")));
  EXPECT_THAT([&] { nag.load_state(sgd.state()); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("lacks the tensor")));
  EXPECT_THAT([&] { sgd.load_state(smaller.state()); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("expected [8]")));
}

}  // namespace
}  // namespace linnet
