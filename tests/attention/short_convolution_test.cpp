// The short convolution of queries, keys and values: against plain loops over rows with masks,
// documents and carried tokens, gradients against finite differences, one call against two.
#include "attention/common/short_convolution.h"

#include "autograd/grad_check.h"
#include "autograd/layout.h"
#include "tests/attention/token_setting.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::TokenSetting;

constexpr int64_t kHeads = 2, kWidth = 3, kChannels = kHeads * kWidth;
constexpr const char* kNames[] = {"q", "k", "v"};
constexpr ShortConvolutionSpec kSpecs[] = {{4, false}, {2, true}, {1, true}, {0, false}};

std::string label(const TokenSetting& setting, const ShortConvolutionSpec& spec) {
  return concat(setting.label(), ", taps ", spec.taps, spec.bias ? " and a bias" : "");
}

// The operation with random parameters and inputs q, k, v and, carried, past q, k, v.
struct Problem {
  TokenSetting setting;
  ShortConvolutionSpec spec;
  ParameterSet parameters;
  ShortConvolution convolution;
  MixerContext context;
  Tensor past_mask;
  std::vector<Tensor> inputs;

  Problem(const TokenSetting& s, const ShortConvolutionSpec& chosen)
      : setting(s), spec(chosen), convolution(chosen, options(), ParameterScope(parameters)) {
    parameters.materialize(5, DType::f64, DType::f64);
    const BlockAttentionContext at = s.context();
    context.positions = at.positions;
    context.key_mask = at.key_mask;
    context.segments = at.segments;
    past_mask = at.past_mask;
    for (const char* name : kNames) {
      inputs.push_back(random_tensor({s.B, s.T, kHeads, kWidth}, name));
    }
    for (const char* name : kNames) {
      if (s.P == 0 || spec.taps == 0) break;
      inputs.push_back(random_tensor({s.B, s.P, kHeads, kWidth}, concat("past ", name)));
    }
  }
  static MixerOptions options() {
    MixerOptions options;
    options.heads = kHeads;
    options.width = kChannels;
    return options;
  }
  std::vector<double> parameter(const std::string& name) const {
    return parameters.find(name).variable.value().to_vector<double>();
  }
  // The results of q, k and v.
  std::vector<Variable> run(const std::vector<Variable>& in) const {
    MixerState state, next;
    for (size_t i = 3; i < in.size(); ++i) state[concat("conv_", kNames[i - 3])] = in[i];
    if (!state.empty() && past_mask.defined()) state["conv_valid"] = mask_to_state(past_mask);
    const MixInput y = convolution({in[0], in[1], in[2], {}, {}}, context, state, next);
    return {y.q, y.k, y.v};
  }
  // A channel of token t of row b, carried ones at t < 0, as token `reader` sees it.
  double seen(size_t which, int64_t b, int64_t t, int64_t channel, int64_t reader) const {
    const auto at = [&](const Tensor& x, const Tensor& mask, int64_t token) {
      const int64_t place = b * x.size(1) + token;
      if (mask.defined() && mask.data<uint8_t>()[place] == 0) return 0.0;
      return x.data<double>()[place * kChannels + channel];
    };
    const auto segment = [&](int64_t token) {
      return context.segments.defined() ? context.segments.data<int32_t>()[b * setting.T + token]
                                        : 0;
    };
    if (segment(std::max(t, int64_t{0})) != segment(reader)) return 0;
    if (t >= 0) return at(inputs[which], context.key_mask, t);
    // Of what is carried, tokens before position 0 belong to another sequence.
    return inputs.size() > 3 && t >= -setting.P && t >= -setting.start
               ? at(inputs[which + 3], past_mask, setting.P + t)
               : 0;
  }
  Tensor expected(size_t which) const {
    const std::string name = concat("conv.", kNames[which]);
    const Tensor y = Tensor::zeros(inputs[which].shape(), DType::f64);
    for (int64_t i = 0; i < y.elements(); ++i) {
      const int64_t channel = i % kChannels, row = i / kChannels;
      const int64_t b = row / setting.T, t = row % setting.T;
      if (context.key_mask.defined() && context.key_mask.data<uint8_t>()[row] == 0) continue;
      double total = spec.taps == 0 ? seen(which, b, t, channel, t) : 0;
      for (int64_t n = 0; n < spec.taps; ++n) {
        total += parameter(name)[static_cast<size_t>(channel * spec.taps + n)] *
                 seen(which, b, t - spec.taps + 1 + n, channel, t);
      }
      if (spec.bias) total += parameter(name + "_bias")[static_cast<size_t>(channel)];
      y.data<double>()[i] = total / (1 + std::exp(-total));
    }
    return y;
  }
};

// With NaN at masked tokens, which are not read.
std::vector<Variable> leaves(const Problem& p) {
  std::vector<Variable> result;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const Tensor& mask = i < 3 ? p.context.key_mask : p.past_mask;
    result.emplace_back(test::poisoned(p.inputs[i], mask), true);
  }
  return result;
}

TEST(ShortConvolution, IsTheSumOverItsTapsInsideADocument) {
  for (const TokenSetting& setting : test::token_settings()) {
    for (const ShortConvolutionSpec& spec : kSpecs) {
      SCOPED_TRACE(label(setting, spec));
      const Problem p(setting, spec);
      const std::vector<Variable> y = p.run(leaves(p));
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(test::close(y[i].value(), p.expected(i), 1e-13)) << kNames[i];
      }
    }
  }
}

TEST(ShortConvolution, ItsDefinitionIsTheSame) {
  for (const ShortConvolutionSpec& spec : kSpecs) {
    SCOPED_TRACE(label({}, spec));
    const Problem p({1, 23, 0, false, true, 0}, spec);
    ReferenceSequence<double> s;
    s.T = s.S = p.setting.T;
    s.H = kHeads;
    s.K = s.V = kWidth;
    s.key_valid = p.context.key_mask.to_vector<uint8_t>();
    for (const auto& entry : p.parameters.entries())
      s.parameters[entry.name] = p.parameter(entry.name);
    std::vector<double>* const given[] = {&s.q, &s.k, &s.v};
    for (size_t i = 0; i < 3; ++i) *given[i] = p.inputs[i].to_vector<double>();
    ReferenceSequence<double> y = short_convolution_definition(spec, s);
    const std::vector<double>* const found[] = {&y.q, &y.k, &y.v};
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<double> expected = p.expected(i).to_vector<double>();
      for (size_t at = 0; at < expected.size(); ++at) {
        if (s.key_valid[at / kChannels] == 0) continue;  // of masked tokens nothing is said
        ASSERT_NEAR((*found[i])[at], expected[at], 1e-13) << kNames[i] << " " << at;
      }
    }
  }
}

TEST(ShortConvolution, GradientsOfItsInputsAgreeWithFiniteDifferences) {
  for (const TokenSetting& setting : test::token_settings()) {
    for (const ShortConvolutionSpec& spec : kSpecs) {
      SCOPED_TRACE(label(setting, spec));
      const Problem p(setting, spec);
      const GradCheckResult result = grad_check(
          [&](const std::vector<Variable>& in) { return p.run(in); }, p.inputs, {.directions = 1});
      EXPECT_TRUE(result.passed) << result.message;
    }
  }
}

TEST(ShortConvolution, GradientsOfItsParametersAgreeWithFiniteDifferences) {
  for (const TokenSetting& setting : test::token_settings()) {
    for (const ShortConvolutionSpec& spec : kSpecs) {
      SCOPED_TRACE(label(setting, spec));
      Problem p(setting, spec);
      const std::vector<Tensor> weights = {random_tensor(p.inputs[0].shape(), "wq"),
                                           random_tensor(p.inputs[1].shape(), "wk"),
                                           random_tensor(p.inputs[2].shape(), "wv")};
      const auto loss = [&] {
        const std::vector<Variable> y = p.run(leaves(p));
        double total = 0;
        for (size_t i = 0; i < 3; ++i) {
          for (int64_t at = 0; at < weights[i].elements(); ++at) {
            total += weights[i].data<double>()[at] * y[i].value().data<double>()[at];
          }
        }
        return total;
      };
      backward(p.run(leaves(p)), weights);
      EXPECT_EQ(p.parameters.entries().size(), spec.taps == 0 ? 0 : spec.bias ? 6 : 3);
      for (const auto& entry : p.parameters.entries()) {
        const Tensor values = p.parameters.weight_of(entry), before = values.clone();
        const Tensor direction = random_tensor(entry.shape, entry.name);
        const auto loss_at = [&](double step) {
          for (int64_t at = 0; at < values.elements(); ++at) {
            values.data<double>()[at] =
                before.data<double>()[at] + step * direction.data<double>()[at];
          }
          p.parameters.refresh_values();
          return loss();
        };
        const double slope = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6;
        loss_at(0);
        double expected = 0;
        for (int64_t at = 0; at < values.elements(); ++at) {
          expected += entry.variable.grad().data<double>()[at] * direction.data<double>()[at];
        }
        EXPECT_NEAR(slope, expected, 1e-5 + 1e-6 * std::abs(expected)) << entry.name;
      }
    }
  }
}

// Two calls with the state between them are one, wherever the row is cut.
TEST(ShortConvolution, GoesOnFromItsState) {
  const int64_t T = 11;
  for (const ShortConvolutionSpec& spec : kSpecs) {
    const Problem p({2, T, 0, true, true, 0}, spec);
    const std::vector<Variable> whole = p.run(leaves(p));
    for (int64_t cut = 1; cut < T; ++cut) {
      SCOPED_TRACE(concat(label(p.setting, spec), ", cut at ", cut));
      MixerState state;
      for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, T}}) {
        const auto part = [begin = begin, end = end](const auto& x) {
          return slice(x, 1, begin, end);
        };
        MixerContext context;
        context.positions = part(p.context.positions);
        context.key_mask = part(p.context.key_mask);
        context.segments = part(p.context.segments);
        const std::vector<Variable> in = leaves(p);
        MixerState next;
        const MixInput y =
            p.convolution({part(in[0]), part(in[1]), part(in[2]), {}, {}}, context, state, next);
        const Variable* const found[] = {&y.q, &y.k, &y.v};
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(test::close(found[i]->value(), part(whole[i].value()), 1e-14)) << kNames[i];
        }
        state = next;
      }
    }
  }
}

}  // namespace
}  // namespace linnet
