// LeaPformer's training: expected, fairseq's expected soft attention of a policy that waits.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "attention/common/token_slices.h"
#include "autograd/grad_check.h"
#include "tests/attention/made_mixer.h"

namespace linnet {
namespace {

using test::MadeMixer;
using test::random_tensor;

constexpr int64_t kRows = 2, kLength = 6, kSource = 7, kHeads = 2, kWidth = 4;
constexpr double kScale = 0.7, kTerm = 1e-6;

MixerOptions options_of(Form form) {
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  options.form = form;
  options.max_length = 20;
  return options;
}

Tensor heads_of(int64_t tokens, const char* name) {
  return random_tensor({kRows, tokens, kHeads, kWidth}, name);
}

double& at(const Tensor& x, int64_t b, int64_t t, int64_t h, int64_t c) {
  return x.data<double>()[((b * x.size(1) + t) * kHeads + h) * kWidth + c];
}

bool source_valid(int64_t b, int64_t j) {
  return b == 0 || (j != 1 && j != kSource - 1);
}
bool query_valid(int64_t b, int64_t i) {
  return b != 0 || i != 3;
}

// Masked tokens among the queries and the source; the queries go on from position `first`.
MixerContext context_of(int64_t first) {
  MixerContext context;
  context.training = true;
  context.place.time_offset = first;
  context.key_mask = Tensor::full({kRows, kLength}, 1, DType::u8);
  context.source_mask = Tensor::full({kRows, kSource}, 1, DType::u8);
  for (int64_t b = 0; b < kRows; ++b) {
    for (int64_t i = 0; i < kLength; ++i) {
      context.key_mask.data<uint8_t>()[b * kLength + i] = query_valid(b, i) ? 1 : 0;
    }
    for (int64_t j = 0; j < kSource; ++j) {
      context.source_mask.data<uint8_t>()[b * kSource + j] = source_valid(b, j) ? 1 : 0;
    }
  }
  return context;
}

// LeaP of one vector, with `hidden: 1`.
double proportion(const MadeMixer& mixer, const std::string& leap, const double* x, double factor) {
  const auto weight = mixer.parameter(leap + ".out.weight");
  double logit = mixer.parameter(leap + ".out.bias")[0];
  for (size_t c = 0; c < kWidth; ++c) logit += weight[c] * std::max(factor * x[c], 0.0);
  return 1 / (1 + std::exp(-logit));
}

double energy(const MadeMixer& mixer, const double* q, const double* k) {
  double product = 0;
  for (int64_t c = 0; c < kWidth; ++c)
    product += std::max(kScale * q[c], 0.0) * std::max(k[c], 0.0);
  return product *
         std::cos(std::numbers::pi / 2 *
                  (proportion(mixer, "leap_q", q, kScale) - proportion(mixer, "leap_k", k, 1)));
}

// y by the formula, where query i sees the first seen(i) tokens.
template <typename Seen>
Tensor expected_of(const MadeMixer& mixer, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Seen& seen) {
  const Tensor y = Tensor::zeros(q.shape(), DType::f64);
  for (int64_t n = 0; n < kRows * kLength * kHeads; ++n) {
    const int64_t h = n % kHeads, i = n / kHeads % kLength, b = n / kHeads / kLength;
    if (!query_valid(b, i)) continue;
    std::vector<double> energies(kSource);
    double largest = -INFINITY, total = kTerm;
    for (int64_t j = 0; j < kSource; ++j) {
      if (!source_valid(b, j)) continue;
      energies[static_cast<size_t>(j)] = energy(mixer, &at(q, b, i, h, 0), &at(k, b, j, h, 0));
      largest = std::max(largest, energies[static_cast<size_t>(j)]);
    }
    const auto mass = [&](int64_t j) {
      return std::exp(energies[static_cast<size_t>(j)] - largest) + kTerm;
    };
    for (int64_t j = 0; j < seen(i); ++j) total += source_valid(b, j) ? mass(j) : 0;
    for (int64_t j = 0; j < seen(i); ++j) {
      for (int64_t c = 0; c < kWidth && source_valid(b, j); ++c) {
        at(y, b, i, h, c) += mass(j) / total * at(v, b, j, h, c);
      }
    }
  }
  return y;
}

TEST(LeapformerExpected, IsTheWeightedMeanOfWhatHasArrived) {
  const Tensor q = heads_of(kLength, "q"), k = heads_of(kSource, "k"), v = heads_of(kSource, "v");
  struct Case {
    int64_t wait, read, first;
  };
  for (const Case& c : {Case{0, 1, 0}, Case{1, 1, 0}, Case{2, 2, 0}, Case{1, 1, 3}}) {
    SCOPED_TRACE(concat("wait ", c.wait, ", read ", c.read, ", first ", c.first));
    const MadeMixer mixer("leapformer",
                          concat("{training: expected, hidden: 1, scale: 0.7, wait: ", c.wait,
                                 ", read: ", c.read, "}"),
                          options_of(Form::cross));
    const MixerContext context = context_of(c.first);
    const auto seen = [&](int64_t i) {
      return c.wait == 0 ? kSource : std::min(kSource, (c.wait + c.first + i) * c.read);
    };
    const Tensor y = mixer.mix(Variable(q), Variable(k), Variable(v), context).y.value();
    EXPECT_TRUE(test::close(y, expected_of(mixer, q, k, v, seen), 1e-12));
    const auto checked = grad_check(
        [&](const std::vector<Variable>& in) {
          return std::vector<Variable>{mixer.mix(in[0], in[1], in[2], context).y};
        },
        {q, k, v}, {.directions = 3});
    EXPECT_TRUE(checked.passed) << checked.message;
  }
}

TEST(LeapformerExpected, IsSoftmaxUpToItsTermsWhenEverythingHasArrived) {
  const Variable q(heads_of(kLength, "q")), k(heads_of(kSource, "k")), v(heads_of(kSource, "v"));
  const auto trained = [&](const char* training) {
    const MadeMixer mixer("leapformer", concat("{training: ", training, "}"),
                          options_of(Form::cross));
    return mixer.mix(q, k, v, context_of(0)).y.value();
  };
  EXPECT_TRUE(test::close(trained("expected"), trained("softmax"), 20 * kTerm));
  EXPECT_FALSE(test::close(trained("expected"), trained("softmax"), 1e-9));
}

// The largest energy is that of all keys: beside a key of 1,000 times the energy, which has not
// arrived, only the added terms are left of the others.
TEST(LeapformerExpected, AKeyThatHasNotArrivedLeavesTheTerms) {
  const MadeMixer mixer("leapformer", "{training: expected, wait: 2}", options_of(Form::cross));
  const Tensor q = heads_of(kLength, "q"), k = heads_of(kSource, "k"), v = heads_of(kSource, "v");
  for (int64_t i = 0; i < q.elements(); ++i) q.data<double>()[i] = 1 + i % 3;
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t c = 0; c < kWidth; ++c) at(k, 0, 4, h, c) = 1000;
  }
  const Tensor y = mixer.mix(Variable(q), Variable(k), Variable(v), context_of(0)).y.value();
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t c = 0; c < kWidth; ++c) {
      EXPECT_NEAR(at(y, 0, 0, h, c), (at(v, 0, 0, h, c) + at(v, 0, 1, h, c)) / 3, 1e-12);
    }
  }
}

TEST(LeapformerExpected, OutsideOfTrainingAndInSelfFormsItIsTheLinearForm) {
  const auto mixed = [&](const char* training, Form form, bool in_training) {
    const MadeMixer mixer("leapformer", concat("{training: ", training, ", wait: 1}"),
                          options_of(form));
    MixerContext context = context_of(0);
    context.training = in_training;
    const int64_t keys = form == Form::cross ? kSource : kLength;
    return mixer
        .mix(Variable(heads_of(kLength, "q")), Variable(heads_of(keys, "k")),
             Variable(heads_of(keys, "v")), context)
        .y.value();
  };
  for (const Form form : {Form::noncausal, Form::causal}) {
    EXPECT_TRUE(test::same_bits(mixed("expected", form, true), mixed("linear", form, true)));
  }
  EXPECT_TRUE(
      test::same_bits(mixed("expected", Form::cross, false), mixed("linear", Form::cross, false)));
  EXPECT_FALSE(
      test::close(mixed("expected", Form::cross, true), mixed("linear", Form::cross, true), 1e-3));
}

}  // namespace
}  // namespace linnet
