// Norms of every kind, alone and with the residual sum: definitions, finite differences,
// precisions, threads.
#include "autograd/norms.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/arithmetic.h"
#include "tests/autograd/op_cases.h"

namespace linnet {
namespace {

using test::random_tensor;
using Variables = std::vector<Variable>;

constexpr NormKind kKinds[] = {NormKind::layer, NormKind::rms, NormKind::scale};

DropoutSpec dropout_of(double probability, int64_t rows) {
  DropoutSpec spec;
  spec.probability = probability;
  spec.key = RandomKey{1, 2, 3};
  spec.place.examples = Tensor::full({rows}, 4, DType::i64);
  return spec;
}

// Calls body(kind, gain, bias) for every combination that the kind allows, `channels` wide.
template <typename Body>
void for_every_form(int64_t channels, const Body& body) {
  for (const NormKind kind : kKinds) {
    const Tensor gain = random_tensor({kind == NormKind::scale ? 1 : channels}, "gain");
    const Tensor bias = random_tensor({channels}, "bias");
    body(kind, Tensor(), Tensor());
    body(kind, gain, Tensor());
    if (kind != NormKind::layer) continue;
    body(kind, Tensor(), bias);
    body(kind, gain, bias);
  }
}

TEST(Norms, ValuesFollowTheirDefinitions) {
  for (const int64_t channels : {1, 5, 16, 37}) {
    const Tensor x = random_tensor({6, channels}, "x", DType::f64, 3);
    for_every_form(channels, [&](NormKind kind, const Tensor& gain, const Tensor& bias) {
      const NormSpec spec{kind, 1e-3};
      const auto wrap = [](const Tensor& t) { return t.defined() ? Variable(t) : Variable(); };
      const Tensor y = norm(Variable(x), wrap(gain), wrap(bias), spec).value();
      for (int64_t r = 0; r < 6; ++r) {
        const double* row = x.data<double>() + r * channels;
        double mean = 0, square = 0;
        for (int64_t c = 0; c < channels; ++c) mean += row[c] / static_cast<double>(channels);
        if (kind != NormKind::layer) mean = 0;
        for (int64_t c = 0; c < channels; ++c) square += (row[c] - mean) * (row[c] - mean);
        square /= static_cast<double>(channels);
        const double divisor =
            kind == NormKind::scale ? std::max(std::sqrt(square), 1e-3) : std::sqrt(square + 1e-3);
        for (int64_t c = 0; c < channels; ++c) {
          const double g = !gain.defined() ? 1 : gain.data<double>()[gain.elements() == 1 ? 0 : c];
          const double b = !bias.defined() ? 0 : bias.data<double>()[c];
          ASSERT_NEAR(y.data<double>()[r * channels + c], (row[c] - mean) / divisor * g + b, 1e-12);
        }
      }
    });
  }
}

// Without gradients no statistics are kept: another path.
TEST(Norms, BitsAreThoseOfRecordedOnes) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const int64_t channels : {1, 5, 37, 192}) {
      const Tensor x = random_tensor({2, 3, channels}, "x").to(dtype);
      const Tensor branch = random_tensor({2, 3, channels}, "branch").to(dtype);
      for_every_form(channels, [&](NormKind kind, const Tensor& gain, const Tensor& bias) {
        const auto leaf = [dtype](const Tensor& t) {
          return t.defined() ? Variable(t.to(dtype), true) : Variable();
        };
        const Variable in(x, true), g = leaf(gain), b = leaf(bias);
        const auto both = [&] {
          const auto [sum, normed] =
              residual_norm(in, Variable(branch), DropoutSpec(), g, b, {kind, 1e-3});
          return std::vector<Tensor>{norm(in, g, b, {kind, 1e-3}).value(), sum.value(),
                                     normed.value()};
        };
        const std::vector<Tensor> recorded = both();
        const NoGrad off;
        const std::vector<Tensor> plain = both();
        for (size_t i = 0; i < recorded.size(); ++i) {
          EXPECT_TRUE(test::same_bits(plain[i], recorded[i]))
              << i << " " << name_of(dtype) << " " << channels;
        }
      });
    }
  }
}

TEST(Norms, GradientsAgreeWithFiniteDifferences) {
  for (const int64_t channels : {1, 5, 19}) {
    for_every_form(channels, [&](NormKind kind, const Tensor& gain, const Tensor& bias) {
      const auto function = [kind](const Variables& v) {
        return Variables{norm(v[0], v[1], v[2], {kind, 0.1})};
      };
      // 70 rows: more than one block of partial gain sums.
      for (const int64_t rows : {3, 70}) {
        if (rows == 70 && channels != 5) continue;
        EXPECT_TRUE(
            test::gradients_agree(function, {random_tensor({rows, channels}, "x"), gain, bias}))
            << static_cast<int>(kind) << " " << channels << gain.defined() << bias.defined();
      }
    });
  }
}

TEST(Norms, ScaleNormIsLinearBelowItsFloor) {
  const auto function = [](const Variables& v) {
    return Variables{norm(v[0], v[1], {}, {NormKind::scale, 10})};
  };
  const Tensor x = random_tensor({3, 6}, "x");
  EXPECT_TRUE(test::gradients_agree(function, {x, random_tensor({1}, "gain")}));
  const Tensor y = norm(Variable(x), {}, {}, {NormKind::scale, 10}).value();
  for (int64_t i = 0; i < x.elements(); ++i) {
    EXPECT_DOUBLE_EQ(y.data<double>()[i], x.data<double>()[i] / 10);
  }
}

TEST(Norms, ResidualFormAgreesWithFiniteDifferences) {
  for (const double probability : {0.0, 0.4}) {
    for_every_form(5, [&](NormKind kind, const Tensor& gain, const Tensor& bias) {
      for (const int used : {0, 1, 2}) {  // only the sum, only the norm, both
        const auto function = [=](const Variables& v) {
          const auto [sum, normed] =
              residual_norm(v[0], v[1], dropout_of(probability, 2), v[2], v[3], {kind, 0.1});
          if (used == 0) return Variables{sum};
          if (used == 1) return Variables{normed};
          return Variables{normed, sum};
        };
        for (const Tensor& branch : {random_tensor({2, 3, 5}, "branch"), Tensor()}) {
          EXPECT_TRUE(
              test::gradients_agree(function, {random_tensor({2, 3, 5}, "x"), branch, gain, bias}))
              << static_cast<int>(kind) << " p " << probability << " used " << used << " branch "
              << branch.defined();
        }
      }
    });
  }
}

// Both operations alone, which the residual form is.
Variables plain_residual_norm(const Variables& v, const DropoutSpec& dropout,
                              const NormSpec& spec) {
  const Variable sum = v[1].defined() ? residual_dropout(v[0], v[1], dropout) : v[0];
  return {sum, norm(sum, v[2], v[3], spec)};
}

TEST(Norms, ResidualFormIsTheSumAndItsNorm) {
  for_every_form(40, [&](NormKind kind, const Tensor& gain, const Tensor& bias) {
    for (const double probability : {0.0, 0.4}) {
      for (const bool branch : {false, true}) {
        const std::vector<Tensor> inputs = {random_tensor({2, 3, 40}, "x"),
                                            branch ? random_tensor({2, 3, 40}, "b") : Tensor(),
                                            gain, bias};
        const DropoutSpec dropout = dropout_of(probability, 2);
        const NormSpec spec{kind, 1e-5};
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const test::Run one = test::run_in(
              dtype,
              [&](const Variables& v) {
                const auto [sum, normed] = residual_norm(v[0], v[1], dropout, v[2], v[3], spec);
                return Variables{sum, normed};
              },
              inputs);
          const test::Run both = test::run_in(
              dtype, [&](const Variables& v) { return plain_residual_norm(v, dropout, spec); },
              inputs);
          for (size_t i = 0; i < 2; ++i) {
            EXPECT_TRUE(test::same_bits(one.outputs[i], both.outputs[i]))
                << static_cast<int>(kind) << " output " << i;
          }
          // The gradients of both results are added before the sum is rounded, not after.
          const double unit = dtype == DType::f32 ? 0x1p-24 : 0x1p-8;
          for (size_t i = 0; i < both.gradients.size(); ++i) {
            EXPECT_TRUE(test::close(one.gradients[i], both.gradients[i], 8 * unit, 4 * unit))
                << static_cast<int>(kind) << " gradient " << i;
          }
        }
      }
    }
  });
}

// A sum that is made first, as where a recomputed block ends, and normed behind: the same bits.
TEST(Norms, AResidualThatIsSummedBeforeHasTheSameBits) {
  for (const NormKind kind : kKinds) {
    for (const double probability : {0.0, 0.4}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto run = [&](bool before) {
          return test::run_in(dtype,
                              [&](const Variables& v) {
                                const NormSpec spec{kind, 1e-5};
                                const DropoutSpec dropout = dropout_of(probability, 2);
                                const Variable sum =
                                    before ? residual_dropout(v[0], v[1], dropout) : Variable();
                                const auto [x, normed] =
                                    before ? residual_norm(sum, {}, {}, v[2], {}, spec)
                                           : residual_norm(v[0], v[1], dropout, v[2], {}, spec);
                                return Variables{x, normed};
                              },
                              {random_tensor({2, 3, 40}, "x"), random_tensor({2, 3, 40}, "b"),
                               random_tensor({kind == NormKind::scale ? 1 : 40}, "gain")})
              .all();
        };
        const std::vector<Tensor> at_once = run(false), before = run(true);
        for (size_t i = 0; i < before.size(); ++i) {
          EXPECT_TRUE(test::same_bits(at_once[i], before[i]))
              << static_cast<int>(kind) << " p " << probability << " tensor " << i;
        }
      }
    }
  }
}

TEST(Norms, AnUnusedNormPassesNothingToItsParameters) {
  const Variable x(random_tensor({1, 2, 4}, "x"), true);
  const Variable branch(random_tensor({1, 2, 4}, "branch"), true);
  Variable gain(random_tensor({4}, "gain"), true);
  int hooks = 0;
  gain.set_gradient_hook([&](const Variable&) { ++hooks; });
  backward(sum_all(residual_norm(x, branch, {}, gain, {}, {}).first));
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(8, 1));
  EXPECT_FALSE(x.grad().shares_storage(branch.grad()));
  EXPECT_EQ(hooks, 1) << "its gradient is complete: zero";
}

TEST(Norms, OtherPrecisionsAgreeWithDouble) {
  for_every_form(96, [&](NormKind kind, const Tensor& gain, const Tensor& bias) {
    const auto function = [kind](const Variables& v) {
      const auto [sum, normed] = residual_norm(v[0], v[1], {}, v[2], v[3], {kind, 1e-5});
      return Variables{normed, sum};
    };
    // The sum is rounded, then the norm of the rounded sum: both errors reach the gradients.
    EXPECT_TRUE(test::precisions_agree(
        function, {random_tensor({2, 40, 96}, "x"), random_tensor({2, 40, 96}, "b"), gain, bias},
        16))
        << static_cast<int>(kind);
  });
}

TEST(Norms, Bf16RoundsTheResultOnce) {
  const Tensor x = random_tensor({50, 96}, "x", DType::bf16);
  const Tensor gain = random_tensor({96}, "gain", DType::bf16);
  const Tensor bias = random_tensor({96}, "bias", DType::bf16);
  const Tensor y = norm(Variable(x), Variable(gain), Variable(bias), {}).value();
  const Tensor exact = norm(Variable(x.to(DType::f64)), Variable(gain.to(DType::f64)),
                            Variable(bias.to(DType::f64)), {})
                           .value();
  // Half a unit in the last place of the result, and the rounding of f32 on the terms.
  EXPECT_TRUE(test::close(y, exact, 1e-5, 0x1p-8));
}

TEST(Norms, LargeOffsetsDoNotCancel) {
  const Tensor x = random_tensor({4, 256}, "x");
  for (int64_t i = 0; i < x.elements(); ++i) x.data<double>()[i] += 1000;
  const Tensor y32 = norm(Variable(x.to(DType::f32)), {}, {}, {}).value();
  const Tensor y64 = norm(Variable(x.to(DType::f32).to(DType::f64)), {}, {}, {}).value();
  // The mean is rounded at 1000 * 2^-24 times a few; E[x^2] - mean^2 would be off by 0.1.
  EXPECT_TRUE(test::close(y32, y64, 1000 * 0x1p-24 * 8));
}

TEST(Norms, ThreadsDoNotChangeABit) {
  for_every_form(64, [&](NormKind kind, const Tensor& gain, const Tensor& bias) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto function = [kind](const Variables& v) {
        const auto [sum, normed] =
            residual_norm(v[0], v[1], dropout_of(0.1, 4), v[2], v[3], {kind, 1e-5});
        return Variables{normed, sum};
      };
      EXPECT_TRUE(test::threads_agree(
          dtype, function,
          {random_tensor({4, 100, 64}, "x"), random_tensor({4, 100, 64}, "b"), gain, bias}));
    }
  });
}

TEST(Norms, RefusesParametersThatDoNotFit) {
  const Variable x(Tensor::zeros({2, 4}));
  const Variable four(Tensor::zeros({4}));
  const Variable three(Tensor::zeros({3}));
  EXPECT_THROW(norm(x, three, {}, {}), Error);
  EXPECT_THROW(norm(x, four, three, {}), Error);
  EXPECT_THROW(norm(x, four, {}, {NormKind::scale, 1e-5}), Error);
  EXPECT_THROW(norm(x, four, four, {NormKind::rms, 1e-5}), Error);
  EXPECT_THROW(norm(Variable(Tensor::zeros({2, 0})), {}, {}, {}), Error);
  const Variable y(Tensor::zeros({1, 2, 4}));
  EXPECT_THROW(residual_norm(y, Variable(Tensor::zeros({2, 1, 4})), {}, {}, {}, {}), Error);
  EXPECT_THROW(residual_norm(y, y, dropout_of(-0.1, 1), {}, {}, {}), Error);
  EXPECT_THROW(residual_norm(y, y, dropout_of(std::nan(""), 1), {}, {}, {}), Error);
}

}  // namespace
}  // namespace linnet
