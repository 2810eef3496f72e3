// LeaPformer beside the conformance suite: training by softmax, cosFormer as a special case, and
// one pair of LeaP modules for all heads.
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

constexpr int64_t kRows = 2, kLength = 7, kSource = 5, kHeads = 2, kWidth = 4;

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

// Two documents in row 0, a masked token in row 1.
MixerContext context_of(Form form) {
  MixerContext context;
  context.training = true;
  const int64_t keys = form == Form::cross ? kSource : kLength;
  const Tensor mask = Tensor::full({kRows, keys}, 1, DType::u8);
  mask.data<uint8_t>()[keys + 2] = 0;
  if (form == Form::cross) {
    context.source_mask = mask;
    return context;
  }
  context.key_mask = mask;
  context.segments = test::ids({0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0}, {kRows, kLength});
  context.positions = test::ids({0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6}, {kRows, kLength});
  return context;
}

// sigmoid(w . relu(W relu(factor x) + b) + b') of one vector.
double proportion(const MadeMixer& mixer, const std::string& leap, const double* x, double factor) {
  const auto W = mixer.parameter(leap + ".hidden.weight"),
             w = mixer.parameter(leap + ".out.weight");
  std::vector<double> inner = mixer.parameter(leap + ".hidden.bias");
  double logit = mixer.parameter(leap + ".out.bias")[0];
  for (size_t l = 0; l < inner.size(); ++l) {
    for (size_t c = 0; c < kWidth; ++c)
      inner[l] += W[l * kWidth + c] * std::max(factor * x[c], 0.0);
    logit += w[l] * std::max(inner[l], 0.0);
  }
  return 1 / (1 + std::exp(-logit));
}

TEST(Leapformer, TrainsByTheSoftmaxOfItsEnergies) {
  for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
    SCOPED_TRACE(name_of(form));
    const bool cross = form == Form::cross;
    const int64_t keys = cross ? kSource : kLength;
    const MadeMixer mixer("leapformer", "{training: softmax, hidden: 3, scale: 0.7}",
                          options_of(form));
    const MixerContext context = context_of(form);
    const Tensor q = heads_of(kLength, "q"), k = heads_of(keys, "k"), v = heads_of(keys, "v");
    const Tensor expected = Tensor::zeros(q.shape(), DType::f64);
    const auto valid = [&](int64_t b, int64_t t) { return b != 1 || t != 2; };
    for (int64_t query = 0; query < kRows * kLength * kHeads; ++query) {
      const int64_t h = query % kHeads, i = query / kHeads % kLength, b = query / kHeads / kLength;
      if (!cross && !valid(b, i)) continue;
      double total = 0;
      for (int64_t j = 0; j < keys; ++j) {
        const bool other = !cross && b == 0 && (i < 3) != (j < 3);
        if (!valid(b, j) || other || (form == Form::causal && j > i)) continue;
        double energy = 0;
        for (int64_t c = 0; c < kWidth; ++c) {
          energy += std::max(0.7 * at(q, b, i, h, c), 0.0) * std::max(at(k, b, j, h, c), 0.0);
        }
        energy *= std::cos(std::numbers::pi / 2 *
                           (proportion(mixer, "leap_q", &at(q, b, i, h, 0), 0.7) -
                            proportion(mixer, "leap_k", &at(k, b, j, h, 0), 1)));
        total += std::exp(energy);
        for (int64_t c = 0; c < kWidth; ++c) {
          at(expected, b, i, h, c) += std::exp(energy) * at(v, b, j, h, c);
        }
      }
      for (int64_t c = 0; c < kWidth; ++c) at(expected, b, i, h, c) /= total;
    }
    EXPECT_TRUE(test::close(mixer.mix(Variable(q), Variable(k), Variable(v), context).y.value(),
                            expected, 1e-12));
    const auto checked = grad_check(
        [&](const std::vector<Variable>& in) {
          return std::vector<Variable>{mixer.mix(in[0], in[1], in[2], context).y};
        },
        {q, k, v}, {.directions = 2});
    EXPECT_TRUE(checked.passed) << checked.message;
  }
}

// Queries of a source that still arrives give the same as cross-attention to the tokens so far.
TEST(Leapformer, WaitingQueriesReadWhatHasArrived) {
  constexpr int64_t kFirst = 1;
  for (const char* training : {"linear", "softmax"}) {
    const MadeMixer whole("leapformer", concat("{hidden: 3, training: ", training, "}"),
                          options_of(Form::cross));
    const Tensor q = heads_of(kLength, "q"), k = heads_of(kSource, "k"), v = heads_of(kSource, "v");
    for (const int64_t read : {1, 2}) {
      SCOPED_TRACE(concat(training, ", read ", read));
      const MadeMixer waiting(
          "leapformer", concat("{hidden: 3, wait: 1, read: ", read, ", training: ", training, "}"),
          options_of(Form::cross));
      MixerContext context = context_of(Form::cross);
      context.key_mask = Tensor::full({kRows, kLength}, 1, DType::u8);
      context.key_mask.data<uint8_t>()[1] = 0;
      context.place.time_offset = kFirst;
      const auto y = waiting.mix(Variable(q), Variable(k), Variable(v), context).y.value();
      for (int64_t i = 0; i < kLength; ++i) {
        const int64_t seen = std::min((1 + kFirst + i) * read, kSource);
        MixerContext at = context;
        at.key_mask = tokens_of(context.key_mask, i, i + 1);
        at.source_mask = tokens_of(context.source_mask, 0, seen);
        const auto expected =
            whole.mix(Variable(tokens_of(q, i, i + 1)), Variable(tokens_of(k, 0, seen)),
                      Variable(tokens_of(v, 0, seen)), at);
        EXPECT_TRUE(test::close(tokens_of(y, i, i + 1), expected.y.value(), 1e-12)) << i;
      }
      const auto checked = grad_check(
          [&](const std::vector<Variable>& in) {
            return std::vector<Variable>{waiting.mix(in[0], in[1], in[2], context).y};
          },
          {q, k, v}, {.directions = 2});
      EXPECT_TRUE(checked.passed) << checked.message;
    }
  }
}

TEST(Leapformer, WaitingQueriesHaveConsecutivePositions) {
  const MadeMixer mixer("leapformer", "{wait: 1}", options_of(Form::cross));
  MixerContext context = context_of(Form::cross);
  context.positions = test::ids({0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 2, 4, 5, 6}, {kRows, kLength});
  const Variable q(heads_of(kLength, "q")), k(heads_of(kSource, "k")), v(heads_of(kSource, "v"));
  EXPECT_NE(test::message_of<UsageError>([&] {
              mixer.mix(q, k, v, context);
            }).find("got 2 where 3 was expected"),
            std::string::npos);
}

TEST(Leapformer, OtherwiseTheLinearFormRemains) {
  const MadeMixer softmax("leapformer", "{training: softmax}", options_of(Form::causal));
  const MadeMixer linear("leapformer", "{}", options_of(Form::causal));
  MixerContext context = context_of(Form::causal);
  const Variable q(heads_of(kLength, "q")), k(heads_of(kLength, "k")), v(heads_of(kLength, "v"));
  const auto trained = softmax.mix(q, k, v, context);
  EXPECT_FALSE(test::close(trained.y.value(), linear.mix(q, k, v, context).y.value(), 1e-3));
  EXPECT_THROW(softmax.mix(q, k, v, context, trained.state), UsageError);
  context.training = false;
  const auto evaluated = softmax.mix(q, k, v, context);
  EXPECT_TRUE(test::same_bits(evaluated.y.value(), linear.mix(q, k, v, context).y.value()));
  EXPECT_THROW(softmax.mix(q, k, v, context, trained.state), UsageError);
  context.training = true;
  EXPECT_THROW(softmax.mix(q, k, v, context, evaluated.state), UsageError);
}

// LeaP modules that read i / N from the first channel.
TEST(Leapformer, ProportionsOfPositionsMakeItCosformer) {
  constexpr double kShift = 9;
  for (const Form form : {Form::noncausal, Form::causal}) {
    MadeMixer leap("leapformer", "{hidden: 1}", options_of(form));
    const MadeMixer cosformer("cosformer", "{max_length: 20}", options_of(form));
    for (const char* module : {"leap_q", "leap_k"}) {
      leap.set(concat(module, ".out.weight"), {1, 0, 0, 0});
      leap.set(concat(module, ".out.bias"), {-kShift});
    }
    MixerContext context;
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < kRows * kLength; ++t) {
      positions.push_back(static_cast<int32_t>(1 + t % kLength));
    }
    context.positions = test::ids(positions, {kRows, kLength});
    const Tensor q = heads_of(kLength, "q"), k = heads_of(kLength, "k"), v = heads_of(kLength, "v");
    for (int64_t i = 0; i < kRows * kLength * kHeads; ++i) {
      const double P = static_cast<double>(positions[static_cast<size_t>(i / kHeads)]) / 20;
      q.data<double>()[i * kWidth] = k.data<double>()[i * kWidth] = kShift + std::log(P / (1 - P));
    }
    EXPECT_TRUE(test::close(leap.mix(Variable(q), Variable(k), Variable(v), context).y.value(),
                            cosformer.mix(Variable(q), Variable(k), Variable(v), context).y.value(),
                            1e-12))
        << name_of(form);
  }
}

TEST(Leapformer, HeadsShareTheirModules) {
  for (const char* training : {"linear", "softmax"}) {
    const MadeMixer mixer("leapformer", concat("{training: ", training, "}"),
                          options_of(Form::causal));
    const MixerContext context = context_of(Form::causal);
    const auto swapped = [](const Tensor& x) {
      const Tensor other = x.clone();
      for (int64_t b = 0; b < kRows; ++b) {
        for (int64_t i = 0; i < kLength * kHeads * kWidth; ++i) {
          const int64_t t = i / kHeads / kWidth, h = i / kWidth % kHeads, c = i % kWidth;
          at(other, b, t, h, c) = at(x, b, t, kHeads - 1 - h, c);
        }
      }
      return other;
    };
    const Tensor q = heads_of(kLength, "q"), k = heads_of(kLength, "k"), v = heads_of(kLength, "v");
    const Tensor y = mixer.mix(Variable(q), Variable(k), Variable(v), context).y.value();
    const Tensor other =
        mixer.mix(Variable(swapped(q)), Variable(swapped(k)), Variable(swapped(v)), context)
            .y.value();
    EXPECT_TRUE(test::close(other, swapped(y), 1e-14)) << training;
  }
}

}  // namespace
}  // namespace linnet
