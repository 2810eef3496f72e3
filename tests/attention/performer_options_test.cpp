// Performer as official codes compute it: floors, maxima and padding, each written out literally.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/conformance/conformance.h"
#include "attention/performer/relative_maxima.h"
#include "attention/registry.h"
#include "autograd/arithmetic.h"
#include "autograd/grad_check.h"
#include "core/yaml.h"
#include "tests/error_helpers.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 2, kTokens = 9, kHeads = 2, kWidth = 4;

struct Problem {
  Form form = Form::noncausal;
  std::string parameters;
  double spread = 1;     // deviation of q and k
  bool padding = false;  // of the last 4 tokens of row 1
  // What the code in question does.
  double epsilon = 1e-4, floor = 0, sum_epsilon = 0;
  double power = -0.25;  // of K, in the factor of q and k
  bool whole_batch = false, counts_padding = false, per_head = false;
};

struct Outcome {
  std::vector<double> found, expected;
  double smallest_denominator = INFINITY;
};

// The mixer's context, and the equations of performer-pytorch and its descendants.
Outcome run(const Problem& problem) {
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  options.form = problem.form;
  ParameterSet set;
  const ParameterScope root(set);
  const auto mixer = find_mechanism("performer")
                         .make(parse_yaml(problem.parameters, "test"), options,
                               {root.child("own"), root.child("tied")});
  set.materialize(4, DType::f64, DType::f64);
  const Shape shape{kRows, kTokens, kHeads, kWidth};
  const Tensor q = test::random_tensor(shape, "q", DType::f64, problem.spread),
               k = test::random_tensor(shape, "k", DType::f64, problem.spread),
               v = test::random_tensor(shape, "v");
  MixerContext context;
  const auto valid = [&](int64_t b, int64_t t) { return !problem.padding || b == 0 || t < 5; };
  if (problem.padding) {
    context.key_mask = Tensor::full({kRows, kTokens}, 1, DType::u8);
    std::fill_n(context.key_mask.data<uint8_t>() + kTokens + 5, 4, uint8_t{0});
  }
  Outcome outcome;
  outcome.found = dynamic_cast<const AttentionMixer&>(*mixer)
                      .mix({Variable(q), Variable(k), Variable(v), {}, {}}, context, {})
                      .y.value()
                      .to_vector<double>();
  const std::vector<double> omega = set.buffers()[0].variable.value().to_vector<double>();
  const auto m = static_cast<int64_t>(omega.size()) / kWidth / (problem.per_head ? kHeads : 1);
  const double factor = std::pow(kWidth, problem.power);
  const auto vector = [&](const Tensor& x, int64_t b, int64_t t, int64_t h) {
    return x.data<double>() + ((b * kTokens + t) * kHeads + h) * kWidth;
  };
  struct Projected {
    std::vector<double> p;
    double half = 0;
    double largest() const { return *std::max_element(p.begin(), p.end()); }
  };
  const auto project = [&](const Tensor& x, int64_t b, int64_t t, int64_t h, bool zero) {
    Projected made;
    for (int64_t r = 0; r < m; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < kWidth && !zero; ++c) {
        const int64_t row = (problem.per_head ? h * m : 0) + r;
        sum += factor * omega[static_cast<size_t>(row * kWidth + c)] * vector(x, b, t, h)[c];
      }
      made.p.push_back(sum);
    }
    for (int64_t c = 0; c < kWidth && !zero; ++c) {
      made.half += std::pow(factor * vector(x, b, t, h)[c], 2) / 2;
    }
    return made;
  };
  const auto features = [&](const Projected& x, double most) {
    std::vector<double> phi;
    for (const double p : x.p) {
      phi.push_back((std::exp(p - x.half - most) + problem.epsilon) /
                    std::sqrt(static_cast<double>(m)));
    }
    return phi;
  };
  const auto key = [&](int64_t b, int64_t j, int64_t h) {
    return project(k, b, j, h, !valid(b, j));
  };
  const auto counts = [&](int64_t b, int64_t j) { return valid(b, j) || problem.counts_padding; };
  const auto largest_key = [&](int64_t row, int64_t head) {
    double most = -INFINITY;
    for (int64_t b = 0; b < kRows; ++b) {
      for (int64_t h = 0; h < kHeads; ++h) {
        if (!problem.whole_batch && (b != row || h != head)) continue;
        for (int64_t j = 0; j < kTokens; ++j) {
          if (counts(b, j)) most = std::max(most, key(b, j, h).largest());
        }
      }
    }
    return most;
  };
  for (int64_t i = 0; i < kRows * kTokens * kHeads; ++i) {
    const int64_t b = i / kHeads / kTokens, t = i / kHeads % kTokens, h = i % kHeads;
    const Projected query = project(q, b, t, h, false);
    const std::vector<double> phi = features(query, query.largest());
    double total = 0;
    for (const double f : phi) total += problem.sum_epsilon * f;
    std::vector<double> sum(kWidth, 0);
    for (int64_t j = 0; j < kTokens; ++j) {
      if (!counts(b, j) || (problem.form == Form::causal && j > t)) continue;
      const std::vector<double> other = features(key(b, j, h), largest_key(b, h));
      double weight = 0;
      for (size_t r = 0; r < phi.size(); ++r) weight += phi[r] * other[r];
      total += weight;
      for (int64_t c = 0; c < kWidth && valid(b, j); ++c) {
        sum[static_cast<size_t>(c)] += weight * vector(v, b, j, h)[c];
      }
    }
    if (valid(b, t)) outcome.smallest_denominator = std::min(outcome.smallest_denominator, total);
    for (const double value : sum) {
      outcome.expected.push_back(valid(b, t) ? value / std::max(total, problem.floor) : 0);
    }
  }
  return outcome;
}

void expect_agreement(const Outcome& outcome) {
  ASSERT_EQ(outcome.found.size(), outcome.expected.size());
  for (size_t i = 0; i < outcome.found.size(); ++i) {
    EXPECT_NEAR(outcome.found[i], outcome.expected[i], 1e-10) << i;
  }
}

// A floor of 1e-6 would bind here, and bound in a sixth of all rows of ordinary models.
TEST(PerformerOptions, DefaultsDivideBySmallSumsAsPerformerPytorchDoes) {
  Problem problem;
  problem.parameters = "{features: 7}";
  problem.spread = 6;
  const Outcome outcome = run(problem);
  expect_agreement(outcome);
  EXPECT_LT(outcome.smallest_denominator, 1e-6);
}

TEST(PerformerOptions, CabHasAFloorOfATenth) {
  Problem problem;
  problem.parameters = "{preset: cab}";
  problem.spread = 2;
  problem.padding = problem.per_head = true;
  problem.floor = 0.1;
  const Outcome outcome = run(problem);
  expect_agreement(outcome);
  EXPECT_LT(outcome.smallest_denominator, 0.1);
}

// Papers that ran another's code have the options of that code.
TEST(PerformerOptions, PresetsOfPapersAreTheCodesThatTheyRan) {
  const auto options = [](const std::string& parameters) {
    ConfigNode all = find_mechanism("performer").resolve(parse_yaml(parameters, "test"));
    all.take("preset");
    return to_yaml(all);
  };
  EXPECT_EQ(options("{preset: leapformer}"), options("{preset: skyformer}"));
  EXPECT_EQ(options("{preset: lavo_forecast}"), options("{preset: cab}"));
  EXPECT_EQ(options("{preset: lavo}"), options("{preset: cab, features: 64}"));
  EXPECT_NE(options("{preset: lavo}"), options("{preset: cab}"));
}

TEST(PerformerOptions, SkyformersCodeCountsPaddingAndTheWholeBatch) {
  Problem problem;
  problem.parameters = "{preset: skyformer, features: 7}";
  problem.spread = 4;
  problem.padding = problem.whole_batch = problem.counts_padding = true;
  problem.power = -0.5;
  expect_agreement(run(problem));
}

TEST(PerformerOptions, TheMaximumOfABatchLeavesPaddingOut) {
  Problem problem;
  problem.parameters = "{features: 7, key_maximum: tensor}";
  problem.spread = 4;
  problem.padding = problem.whole_batch = true;
  expect_agreement(run(problem));
}

TEST(PerformerOptions, TheCausalFormOfPerformerPytorch) {
  Problem problem;
  problem.form = Form::causal;
  problem.parameters = "{preset: lucidrains_causal, features: 7}";
  problem.spread = 4;
  problem.sum_epsilon = 1e-6;
  expect_agreement(run(problem));
}

TEST(PerformerOptions, GradientsPassThroughMaxima) {
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 0}, {2, 3});
  const Tensor segments = Tensor::from(std::vector<int32_t>{0, 0, 1, 0, 1, 1}, {2, 3});
  for (const MaximumOver over : {MaximumOver::row, MaximumOver::sequence, MaximumOver::tensor}) {
    MaximumGroups groups{over, mask, over == MaximumOver::sequence ? segments : Tensor()};
    const auto valid_part = [&](const std::vector<Variable>& in) {
      const Variable y = relative_to_maxima(in[0], groups);
      // Squares, with zeros at masked tokens.
      Tensor weights = Tensor::zeros(y.shape(), DType::f64);
      for (int64_t i = 0; i < y.value().elements(); ++i) {
        const int64_t token = i / 10;
        weights.data<double>()[i] = mask.data<uint8_t>()[token];
      }
      return std::vector<Variable>{multiply(multiply(y, y), Variable(weights))};
    };
    const auto result = grad_check(valid_part, {test::random_tensor({2, 3, 2, 5}, "p")});
    EXPECT_TRUE(result.passed) << static_cast<int>(over) << ": " << result.message;
  }
}

TEST(PerformerOptions, EqualMaximaShareTheirGradient) {
  const Variable p(Tensor::from(std::vector<double>{3, 1, 3, 2}, {1, 2, 1, 2}), true);
  const Variable y = relative_to_maxima(p, {MaximumOver::sequence, {}, {}});
  EXPECT_EQ(y.value().to_vector<double>(), (std::vector<double>{0, -2, 0, -1}));
  backward({y}, {Tensor::from(std::vector<double>{1, 2, 4, 8}, {1, 2, 1, 2})});
  EXPECT_EQ(p.grad().to_vector<double>(), (std::vector<double>{1 - 7.5, 2, 4 - 7.5, 8}));
}

// The source is encoded once: queries in several calls are those of one.
TEST(PerformerOptions, MaximaOfAllKeysOfASourceAllowSeveralCalls) {
  for (const char* parameters : {"{key_maximum: sequence}", "{key_maximum: tensor}"}) {
    bool chunks = false;
    for (const CheckResult& result : run_conformance(find_mechanism("performer"), Form::cross,
                                                     parse_yaml(parameters, "test"))) {
      EXPECT_TRUE(result.passed) << parameters << ", " << result.check << ": " << result.message;
      chunks = chunks || (result.check == "chunks" && !result.exempt);
    }
    EXPECT_TRUE(chunks) << parameters;
  }
}

TEST(PerformerOptions, FormsAndKernelsWithoutTheirMeaningAreRefused) {
  const Mechanism& performer = find_mechanism("performer");
  const auto traits = [&](const char* parameters) {
    return performer.traits_of(parse_yaml(parameters, "test"));
  };
  EXPECT_FALSE(traits("{maximum_gradients: true}").causal);
  EXPECT_FALSE(traits("{padding: counted}").causal);
  for (const char* parameters : {"{maximum_gradients: true}", "{padding: counted}"}) {
    EXPECT_FALSE(traits(parameters).decode_state) << parameters;
  }
  // The output of a row depends on its padded length where padding counts, and only there.
  EXPECT_TRUE(traits("{padding: counted}").depends_on_length);
  EXPECT_FALSE(traits("{key_maximum: sequence}").depends_on_length);
  EXPECT_FALSE(traits("{preset: lucidrains_causal}").noncausal);
  EXPECT_FALSE(traits("{preset: lucidrains_causal}").decode_state);
  EXPECT_TRUE(traits("{}").decode_state);
  const auto cause = [&](const char* parameters) {
    return test::causes_of<UsageError>([&] { traits(parameters); });
  };
  EXPECT_EQ(cause("{kernel: relu, key_maximum: tensor}"), "conflict key_maximum at test:1:29");
  EXPECT_EQ(cause("{kernel: relu, maximum_gradients: true}"),
            "conflict maximum_gradients at test:1:35");
  EXPECT_EQ(cause("{sum_epsilon: 0.1}"), "conflict sum_epsilon at test:1:15");
}

}  // namespace
}  // namespace linnet
