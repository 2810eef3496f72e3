// LARA beside the conformance suite: its estimate of softmax attention.
#include "attention/lara/lara.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include "core/yaml.h"
#include "tests/attention/made_mixer.h"
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

// Three valid tokens of one head, then padding of whatever it holds.
struct Padded {
  static constexpr int64_t kValid = 3;
  MixerContext context;
  test::MadeMixer mixer;

  explicit Padded(const std::string& parameters)
      : mixer("lara", parameters, {.width = 2, .heads = 1, .form = Form::noncausal}) {}
  // The outputs of the valid tokens, of `tokens` in all.
  std::vector<double> outputs(int64_t tokens) {
    context.key_mask = Tensor::zeros({1, tokens}, DType::u8);
    std::fill_n(context.key_mask.data<uint8_t>(), kValid, uint8_t{1});
    const auto leaf = [tokens](std::vector<double> values) {
      values.resize(static_cast<size_t>(tokens * 2), std::nan(""));
      return Variable(Tensor::from(values, {1, tokens, 1, 2}));
    };
    const std::vector<double> y =
        mixer
            .mix(leaf({0.5, -1, 1.5, 0.25, -0.75, 1}), leaf({1, 0.5, -0.5, 2, 0.25, -1.25}),
                 leaf({1, -2, 3, 0.5, -1, 4}), context)
            .y.value()
            .to_vector<double>();
    return {y.begin(), y.begin() + kValid * 2};
  }
};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-11) << what;
}

// Numbers of the released codes' formulas, computed apart: three landmarks of 1, 2 and 2 tokens,
// the last two tokens padded, so that the third landmark is padding alone.
TEST(Lara, PaddingAndWeightsAreThoseOfTheReleasedCodes) {
  struct Case {
    const char* parameters;
    std::vector<double> expected;
  };
  const std::vector<Case> cases = {{"{landmarks: 3, weighting: optimal, padding: row_of_zeros}",
                                    {0.425840773475, 0.485999414103, 0.61137372025, 0.325394347228,
                                     1.14190835366, 0.0379808938129}},
                                   {"{landmarks: 3, weighting: biased, padding: row_of_zeros}",
                                    {0.322405239127, 0.527608910592, 0.383712712818, 0.4448485056,
                                     1.29883094614, -0.105162741515}},
                                   {"{landmarks: 3, weighting: balance, padding: row_of_zeros}",
                                    {0.494978577964, 0.456140692048, 0.58245566126, 0.350083439669,
                                     1.11192428163, 0.0586046082989}},
                                   {"{landmarks: 3, padding: counted}",
                                    {0.355808150321, 0.537945103042, 0.424602084017, 0.428299676736,
                                     1.24957970215, -0.048022261261}},
                                   {"{landmarks: 3, padding: row_of_zeros}",
                                    {0.337961097553, 0.528958890756, 0.406204338224, 0.433402181311,
                                     1.28912722611, -0.0927513585512}}};
  for (const Case& each : cases) {
    expect_near(Padded(each.parameters).outputs(5), each.expected, each.parameters);
  }
}

TEST(Lara, PaddingThatIsIgnoredChangesNothing) {
  for (const char* weighting : {"cab", "biased", "balance", "optimal"}) {
    const auto outputs = [&](const char* padding, int64_t tokens) {
      return Padded(concat("{landmarks: 2, weighting: ", weighting, ", padding: ", padding, "}"))
          .outputs(tokens);
    };
    const std::vector<double> alone = outputs("ignored", 3);
    expect_near(outputs("ignored", 5), alone, weighting);
    for (const char* counting : {"row_of_zeros", "counted"}) {
      expect_near(outputs(counting, 3), alone, concat(weighting, " ", counting));
      const std::vector<double> padded = outputs(counting, 5);
      EXPECT_GT(std::abs(padded[0] - alone[0]), 1e-3) << weighting << " " << counting;
    }
  }
}

}  // namespace
}  // namespace linnet
