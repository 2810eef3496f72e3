// Gradient norms, clipping, and the name of the parameter whose gradient is not finite.
#include "optim/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/random.h"
#include "core/threads.h"

namespace linnet {
namespace {

TEST(GlobalNorm, AccumulatesInDoubleForAnyThreadCount) {
  constexpr int64_t kCount = 300007;
  std::vector<float> values(kCount);
  long double exact = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(RandomKey{1, 0, 0}.normal(i) * 1e10);
    exact += static_cast<long double>(values[i]) * static_cast<long double>(values[i]);
  }
  const Tensor gradients = Tensor::from(values, {kCount});
  const int before = thread_count();
  set_thread_count(1);
  const double one = global_norm(gradients);
  set_thread_count(3);
  const double three = global_norm(gradients);
  set_thread_count(before);
  EXPECT_EQ(one, three);
  const double expected = static_cast<double>(std::sqrt(exact));
  EXPECT_TRUE(std::abs(one - expected) <= 1e-13 * expected) << one << " " << expected;
  EXPECT_DOUBLE_EQ(global_norm(Tensor::from<double>({3, 4}, {2})), 5);
}

TEST(ClipFactor, BringsTheNormDownToTheLimitOnly) {
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 0.25);
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 0), 1);
  EXPECT_THROW(clip_factor(std::nan(""), 1), Error);
}

TEST(ClipByValue, ClampsAndKeepsNaN) {
  const Tensor gradients = Tensor::from<float>({-3, -0.5f, 0.25f, 7, std::nanf("")}, {5});
  clip_by_value(gradients, 1);
  const std::vector<float> values = gradients.to_vector<float>();
  EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 4),
            (std::vector<float>{-1, -0.5f, 0.25f, 1}));
  EXPECT_TRUE(std::isnan(values[4]));
  EXPECT_THROW(clip_by_value(gradients, 0), Error);
}

TEST(NonFinite, NamesTheFirstParameter) {
  const std::vector<ParameterSpan> layout = {{"a", 0, 2}, {"b", 2, 5}, {"c", 6, 8}};
  const Tensor gradients = Tensor::zeros({8});
  EXPECT_EQ(first_non_finite(gradients, layout), "");
  gradients.data<float>()[7] = std::nanf("");
  EXPECT_EQ(first_non_finite(gradients, layout), "c");
  gradients.data<float>()[4] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_non_finite(gradients, layout), "b");
  EXPECT_FALSE(std::isfinite(global_norm(gradients)));
}

}  // namespace
}  // namespace linnet
