// LARA beside the conformance suite: its estimate of softmax attention.
#include "attention/lara/lara.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kHeads = 2, kWidth = 2;

std::unique_ptr<TokenMixer> mixer_of(ParameterSet& set, const std::string& parameters) {
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  options.form = Form::noncausal;
  const ParameterScope root(set);
  auto mixer = find_mechanism("lara").make(parse_yaml(parameters, "test"), options,
                                           {root.child("own"), root.child("tied")});
  set.materialize(4, DType::f64, DType::f64);
  return mixer;
}

// Root mean square of the difference to softmax attention in training, a landmark for each of T
// tokens.
double distance_to_softmax(int64_t T, const std::string& options) {
  ParameterSet set;
  const auto mixer = mixer_of(set, concat("{landmarks: ", T, options, "}"));
  const Shape shape{1, T, kHeads, kWidth};
  const Tensor q = test::random_tensor(shape, "q", DType::f64, 0.5);
  const Tensor k = test::random_tensor(shape, "k", DType::f64, 0.5);
  const Tensor v = test::random_tensor(shape, "v");
  MixerContext context;
  context.training = true;
  context.random = RandomKey{7, 3, 0};
  context.place.examples = Tensor::zeros({1}, DType::i64);
  const MixInput input{Variable(q), Variable(k), Variable(v), {}, {}};
  const auto& attention = dynamic_cast<const AttentionMixer&>(*mixer);
  const std::vector<double> y = attention.mix(input, context, {}).y.value().to_vector<double>();
  double sum = 0;
  const auto at = [](const Tensor& x, int64_t t, int64_t h) {
    return x.data<double>() + (t * kHeads + h) * kWidth;
  };
  for (int64_t i = 0; i < T; ++i) {
    for (int64_t h = 0; h < kHeads; ++h) {
      double total = 0;
      std::vector<double> read(kWidth, 0);
      for (int64_t j = 0; j < T; ++j) {
        double logit = 0;
        for (int64_t c = 0; c < kWidth; ++c) logit += at(q, i, h)[c] * at(k, j, h)[c];
        const double weight = std::exp(logit / std::sqrt(static_cast<double>(kWidth)));
        total += weight;
        for (int64_t c = 0; c < kWidth; ++c)
          read[static_cast<size_t>(c)] += weight * at(v, j, h)[c];
      }
      for (int64_t c = 0; c < kWidth; ++c) {
        const double error = y[static_cast<size_t>((i * kHeads + h) * kWidth + c)] -
                             read[static_cast<size_t>(c)] / total;
        sum += error * error;
      }
    }
  }
  return std::sqrt(sum / static_cast<double>(T * kHeads * kWidth));
}

TEST(Lara, ExactBalancedProposalsComeToSoftmax) {
  const std::string exact = ", weighting: balance, exact: true";
  const double few = distance_to_softmax(100, exact), many = distance_to_softmax(400, exact);
  EXPECT_LT(many, 0.4 * few);  // 0.31: with the number of draws
  EXPECT_LT(many, distance_to_softmax(400, ", weighting: balance"));
  EXPECT_LT(many, distance_to_softmax(400, ", exact: true"));
}

TEST(Lara, LandmarksHaveParametersOnlyWhereTheyAreLearned) {
  ParameterSet plain, learned;
  mixer_of(plain, "{}");
  mixer_of(learned, "{learned: true}");
  // A map with its bias and norm for queries and one for keys, whatever the number of heads.
  EXPECT_EQ(learned.count() - plain.count(), 2 * (kWidth * kWidth + 3 * kWidth));
  const int64_t E = kHeads * kWidth;
  EXPECT_EQ(plain.count(), 4 * (E * E + E));
}

}  // namespace
}  // namespace linnet
