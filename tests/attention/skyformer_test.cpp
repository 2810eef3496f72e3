// Skyformer beside the conformance suite: the kernel that it approximates, the spectrum that its
// inverse relies on, independence of the padded length.
#include "attention/skyformer/skyformer.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include <numeric>

#include "attention/common/gaussian_kernel.h"
#include "attention/common/iterated_inverse_definition.h"
#include "attention/primitives/matrices/matrices.h"
#include "attention/skyformer/preconditioner.h"
#include "attention/skyformer/sampled_rows.h"
#include "autograd/grad_check.h"
#include "autograd/products.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kHeads = 2, kWidth = 3;

std::unique_ptr<TokenMixer> mixer_of(ParameterSet& set, const std::string& name,
                                     const std::string& parameters) {
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  options.form = Form::noncausal;
  const ParameterScope root(set);
  auto mixer = find_mechanism(name).make(parse_yaml(parameters, "test"), options,
                                         {root.child("own"), root.child("tied")});
  set.materialize(4, DType::f64, DType::f64);
  return mixer;
}

Tensor attend(const std::string& name, const std::string& parameters, const MixInput& input,
              const MixerContext& context) {
  ParameterSet set;
  const auto mixer = mixer_of(set, name, parameters);
  return dynamic_cast<const AttentionMixer&>(*mixer).mix(input, context, {}).y.value();
}

MixInput random_input(int64_t T) {
  const auto random = [&](const char* name) {
    return Variable(test::random_tensor({1, T, kHeads, kWidth}, name));
  };
  return {random("q"), random("k"), random("v"), {}, {}};
}

TEST(Skyformer, AllRowsAndAConvergedInverseGiveKernelizedAttention) {
  constexpr int64_t T = 5;
  const MixInput input = random_input(T);
  // Every query and every key once.
  std::vector<double> draws;
  for (int64_t i = 0; i < 2 * T; ++i) draws.push_back((static_cast<double>(i % T) + 0.5) / T);
  CallDraws given;
  given.given_draws["rows"] = Tensor::from(draws, {1, 2 * T});
  MixerContext context;
  context.record = &given;
  const Tensor found = attend("skyformer", "{rows: 10, gamma: 1.0e-9, steps: 40}", input, context);
  EXPECT_TRUE(test::close(found, attend("kernelized", "{}", input, {}), 1e-5));
}

// Every channel of every row by itself: a sanitizer's build once read channel 0 of keys throughout.
TEST(Skyformer, SampledRowsAreQueriesThenKeys) {
  constexpr int64_t B = 2, T = 4, r = 4;
  const Tensor q = test::random_tensor({B, T, kHeads, kWidth}, "q"),
               k = test::random_tensor({B, T, kHeads, kWidth}, "k");
  const std::vector<int32_t> tokens = {1, 3, 0, 3, 2, 2, 1, -1};
  const Tensor rows = sampled_rows(Variable(q), Variable(k), Tensor::from(tokens, {B, r})).value();
  constexpr int64_t kChannels = kHeads * kWidth;
  for (int64_t i = 0; i < rows.elements(); ++i) {
    const int64_t row = i / kChannels, c = i % kChannels, b = row / r, token = tokens[row];
    const Tensor& from = row % r < 2 ? q : k;
    const double expected = token < 0 ? 0 : from.data<double>()[(b * T + token) * kChannels + c];
    EXPECT_EQ(rows.data<double>()[i], expected) << "row " << row << ", channel " << c;
  }
}

TEST(Skyformer, TheKernelOfRowsIsTheGaussian) {
  constexpr int64_t G = 2, r = 5;
  const Tensor rows = test::random_tensor({G, r, kWidth}, "rows");
  const double* x = rows.data<double>();
  const Variable kernel = row_kernel(Variable(rows));
  for (int64_t i = 0; i < G * r * r; ++i) {
    const int64_t row = i / r, other = row / r * r + i % r;
    const double expected = gaussian_kernel(x + row * kWidth, x + other * kWidth, kWidth);
    EXPECT_NEAR(kernel.value().data<double>()[i], expected, 1e-14) << i;
  }
  const GradCheckResult result = grad_check(
      [](const std::vector<Variable>& in) { return std::vector<Variable>{row_kernel(in[0])}; },
      {rows});
  EXPECT_TRUE(result.passed) << result.message;
}

// Without gamma the row that was drawn twice would leave the matrix singular.
TEST(Skyformer, ThePreconditionedMatrixHasEigenvaluesUpToOne) {
  constexpr int64_t r = 6;
  const Tensor rows = test::random_tensor({1, r, kWidth}, "rows");
  std::copy_n(rows.data<double>(), kWidth, rows.data<double>() + 4 * kWidth);
  const Variable kernel = row_kernel(Variable(rows));
  const Preconditioned made = precondition(kernel, 0.1);
  // The largest eigenvalue by powers; the smallest as that of the inverse.
  const auto largest = [&](const Variable& matrix) {
    Tensor vector = test::random_tensor({1, r, 1}, "vector");
    double length = 0;
    for (int step = 0; step < 300; ++step) {
      vector = matmul(matrix, Variable(vector)).value();
      const double* at = vector.data<double>();
      length = std::sqrt(std::inner_product(at, at + r, at, 0.0));
      for (int64_t i = 0; i < r; ++i) vector.data<double>()[i] /= length;
    }
    return length;
  };
  EXPECT_NEAR(largest(made.matrix), 1, 1e-9);
  const Variable inverse = iterated_inverse(made.matrix, 30, InverseNorm::matrix);
  const double smallest = 1 / largest(inverse);
  EXPECT_GT(smallest, 0.1 / (r + 0.1) - 1e-9);  // gamma over the largest row sum
  EXPECT_LT(smallest, 0.1);
}

TEST(Skyformer, MorePaddingChangesNothing) {
  constexpr int64_t T = 9, kLonger = 14;
  const MixInput input = random_input(kLonger);
  MixerContext context;
  context.random = RandomKey{3, 4, 0};
  context.place.examples = Tensor::from(std::vector<int64_t>{7}, {1});
  const auto cut = [](const Variable& x) {
    return Variable(x.value().slice(0, {1, T, kHeads, kWidth}).clone());
  };
  const std::string parameters = "{rows: 8}";
  const Tensor own =
      attend("skyformer", parameters, {cut(input.q), cut(input.k), cut(input.v), {}, {}}, context);
  context.key_mask = Tensor::zeros({1, kLonger}, DType::u8);
  std::fill_n(context.key_mask.data<uint8_t>(), T, uint8_t{1});
  const Tensor padded = attend("skyformer", parameters, input, context);
  EXPECT_TRUE(test::close(padded.slice(0, own.shape()), own, 1e-12));
}

TEST(Skyformer, SharedDrawsSampleTheSamePlacesForAll) {
  const Shape shape{2, 6, kHeads, kWidth};
  const Tensor one = test::random_tensor({1, 6, kHeads, kWidth}, "one");
  const auto twice = [&](const Tensor& row) {
    std::vector<double> all = row.to_vector<double>();
    all.insert(all.end(), all.begin(), all.begin() + row.elements());
    return Variable(Tensor::from(all, shape));
  };
  const MixInput input{twice(one), twice(one), twice(one), {}, {}};
  MixerContext context;
  context.random = RandomKey{3, 4, 0};
  context.place.examples = Tensor::from(std::vector<int64_t>{7, 8}, {2});
  for (const std::string draws : {"shared", "per_example"}) {
    const Tensor y = attend("skyformer", concat("{rows: 4, draws: ", draws, "}"), input, context);
    EXPECT_EQ(static_cast<bool>(test::same_bits(y.rows(0, 1), y.rows(1, 2))), draws == "shared");
  }
}

// The released code: one divisor for all matrices of a batch, distances scaled for 32 channels.
TEST(Skyformer, TheReleasedCodeCouplesABatchAndScalesForHeadsOf32) {
  constexpr int64_t B = 2, T = 6, r = 4, kSteps = 2;
  const auto random = [&](const char* name) {
    return Variable(test::random_tensor({B, T, kHeads, kWidth}, name, DType::f64, 1.5));
  };
  const MixInput input{random("q"), random("k"), random("v"), {}, {}};
  CallDraws given;
  given.given_draws["rows"] = Tensor::from(std::vector<double>{0.1, 0.9, 0.4, 0.6}, {1, r});
  MixerContext context;
  context.record = &given;
  const Tensor found = attend("skyformer", "{preset: released, rows: 4, steps: 2}", input, context);
  const int64_t tokens[r] = {0, 5, 2, 3};
  const auto at = [](const Variable& x, int64_t b, int64_t t, int64_t h) {
    return x.value().data<double>() + ((b * T + t) * kHeads + h) * kWidth;
  };
  const auto kernel = [](const double* a, const double* b) {
    double squares = 0;
    for (int64_t c = 0; c < kWidth; ++c) squares += (a[c] - b[c]) * (a[c] - b[c]);
    return std::exp(-squares / (2 * std::sqrt(32.0)));
  };
  const auto row = [&](int64_t b, int64_t h, int64_t a) {
    return at(a < r / 2 ? input.q : input.k, b, tokens[a], h);
  };
  std::vector<SquareMatrix<double>> matrices;
  std::vector<std::vector<double>> roots;
  std::vector<double> norms;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      SquareMatrix<double> m;
      std::vector<double> root(r, 0);
      for (int64_t i = 0; i < r * r; ++i) {
        m.push_back(kernel(row(b, h, i / r), row(b, h, i % r)) + (i / r == i % r ? 0.1 : 0));
        root[static_cast<size_t>(i / r)] += m.back();
      }
      for (double& value : root) value = 1 / std::sqrt(value);
      for (size_t i = 0; i < m.size(); ++i) m[i] *= root[i / r] * root[i % r];
      norms.push_back(largest_column_sum(m, r));
      matrices.push_back(m);
      roots.push_back(root);
    }
  }
  const double norm = *std::max_element(norms.begin(), norms.end());
  EXPECT_LT(*std::min_element(norms.begin(), norms.end()), 0.999 * norm);
  for (int64_t i = 0; i < found.elements(); ++i) {
    const int64_t token = i / kWidth / kHeads, h = i / kWidth % kHeads, b = token / T;
    const auto group = static_cast<size_t>(b * kHeads + h);
    const SquareMatrix<double> z = iterated_inverse_definition(matrices[group], r, kSteps, norm);
    double expected = 0;
    for (int64_t a = 0; a < r * r; ++a) {
      double written = 0;
      for (int64_t j = 0; j < T; ++j) {
        written +=
            kernel(row(b, h, a % r), at(input.k, b, j, h)) * at(input.v, b, j, h)[i % kWidth];
      }
      expected += kernel(at(input.q, b, token % T, h), row(b, h, a / r)) *
                  roots[group][static_cast<size_t>(a / r)] * z[static_cast<size_t>(a)] *
                  roots[group][static_cast<size_t>(a % r)] * written;
    }
    EXPECT_NEAR(found.data<double>()[i], expected, 1e-11) << i;
  }
}

TEST(Skyformer, AKernelOfAsManyChannelsAsAHeadHasIsTheDefault) {
  const MixInput input = random_input(7);
  const std::string width = concat("{rows: 4, kernel_width: ", kWidth, "}");
  const Tensor plain = attend("skyformer", "{rows: 4}", input, {});
  EXPECT_TRUE(test::same_bits(attend("skyformer", width, input, {}), plain));
  EXPECT_FALSE(
      test::close(attend("skyformer", "{rows: 4, kernel_width: 32}", input, {}), plain, 1e-3));
}

TEST(Skyformer, AnOddNumberOfRowsIsRefused) {
  ParameterSet set;
  EXPECT_NE(test::message_of<UsageError>([&] {
              mixer_of(set, "skyformer", "{rows: 5}");
            }).find("rows must be even, found 5"),
            std::string::npos);
}

TEST(Skyformer, HasNoParametersOfItsOwn) {
  const int64_t E = kHeads * kWidth;
  for (const char* name : {"skyformer", "kernelized"}) {
    ParameterSet set;
    mixer_of(set, name, "{}");
    EXPECT_EQ(set.count(), 4 * (E * E + E)) << name;
  }
}

}  // namespace
}  // namespace linnet
