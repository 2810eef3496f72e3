// Mixers that are wrong on purpose: the conformance suite must name the fault of each.
#include <gtest/gtest.h>

#include "attention/conformance/conformance.h"
#include "attention/primitives/linear_attention/linear_attention.h"
#include "attention/registry.h"
#include "autograd/arithmetic.h"
#include "core/yaml.h"
#include "tests/attention/rejected.h"

namespace linnet {
namespace {

// Changes the input of softmax attention, or its output.
class Wrapped : public TokenMixer {
 public:
  explicit Wrapped(std::unique_ptr<TokenMixer> inner) : inner_(std::move(inner)) {}
  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState& state) const override {
    return change(x, context, state);
  }
  MixerResult forward_cross(const Variable& x, const Variable& source, const MixerContext& context,
                            const MixerState& state) const override {
    return inner_->forward_cross(x, source, context, state);
  }
  MixerCost cost(const MixerShape& shape) const override { return inner_->cost(shape); }

 protected:
  virtual MixerResult change(const Variable& x, const MixerContext& context,
                             const MixerState& state) const = 0;
  std::unique_ptr<TokenMixer> inner_;
};

// Every output gets a little of the next token's.
class LooksAhead : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerResult result = inner_->forward(x, context, state);
    const Tensor y = result.y.value().clone();
    const int64_t T = y.size(1), width = y.size(2);
    for (int64_t b = 0; b < y.size(0); ++b) {
      for (int64_t t = 0; t + 1 < T; ++t) {
        for (int64_t c = 0; c < width; ++c) {
          const int64_t at = (b * T + t) * width + c;
          dispatch_floating(y.dtype(), [&](auto zero) {
            using Number = decltype(zero);
            Number* data = y.data<Number>();
            data[at] = static_cast<Number>(
                static_cast<Compute<Number>>(data[at]) +
                static_cast<Compute<Number>>(1e-3) *
                    static_cast<Compute<Number>>(x.value().data<Number>()[at + width]));
          });
        }
      }
    }
    result.y = Variable(y);
    return result;
  }
};

class ForgetsMask : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerContext unmasked = context;
    unmasked.key_mask = Tensor();
    return inner_->forward(x, unmasked, state);
  }
};

// Padded tokens read 1, which the output projection may hide.
class ReadsPadding : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerResult result = inner_->forward(x, context, state);
    if (!context.key_mask.defined()) return result;
    const Tensor read = result.context.value().clone();
    const int64_t T = read.size(1);
    for (int64_t i = 0; i < context.key_mask.elements(); ++i) {
      if (context.key_mask.data<uint8_t>()[i] != 0) continue;
      read.rows(i / T, i / T + 1).reshape({T, read.size(2)}).rows(i % T, i % T + 1).fill(1);
    }
    result.context = Variable(read);
    return result;
  }
};

class DropsState : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState&) const override {
    return inner_->forward(x, context, {});
  }
};

class IgnoresSegments : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerContext joined = context;
    joined.segments = Tensor();
    return inner_->forward(x, joined, state);
  }
};

class WrongGradient : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerResult result = inner_->forward(x, context, state);
    const Tensor y = result.y.value();
    result.y = record("wrong", y, {result.y}, [](Gradients& gradients) {
      const Tensor doubled = gradients.output().clone();
      doubled.fill(1);
      gradients.add(0, doubled);
    });
    return result;
  }
};

// 8 % too large where activations are bf16.
class ScalesBf16Gradient : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerResult result = inner_->forward(x, context, state);
    if (x.dtype() != DType::bf16) return result;
    result.y = record("scaled", result.y.value(), {result.y}, [](Gradients& gradients) {
      std::vector<double> values = gradients.output().to_vector<double>();
      for (double& value : values) value *= 1.08;
      gradients.add(0, Tensor::from(values, gradients.output().shape()).to(DType::bf16));
    });
    return result;
  }
};

// Leaves no state.
class KeepsNothing : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerResult result = inner_->forward(x, context, state);
    result.state.clear();
    return result;
  }
};

// A call of no tokens ends the sequence.
class ForgetsAtNothing : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerResult result = inner_->forward(x, context, state);
    if (x.size(1) == 0) result.state.clear();
    return result;
  }
};

// Reads x instead of the source.
class IgnoresTheSource : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    return inner_->forward(x, context, state);
  }
  MixerResult forward_cross(const Variable& x, const Variable&, const MixerContext& context,
                            const MixerState&) const override {
    MixerContext own = context;
    own.source_mask = context.key_mask;
    return inner_->forward_cross(x, x, own, {});
  }
};

class MixesRows : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    MixerResult result = inner_->forward(x, context, state);
    const Tensor y = result.y.value().clone();
    if (y.size(0) > 1) y.rows(0, 1).copy_from(result.y.value().rows(1, 2));
    result.y = Variable(y);
    return result;
  }
};

// Its state grows by itself, though nothing comes of it.
class LetsAStateGrow : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    const int64_t B = x.size(0), T = x.size(1);
    const Variable rows(x.value().reshape({B, T, 1, x.size(2)}));
    const Tensor growth = Tensor::empty({B, T, 1}, DType::f32);
    growth.fill(0.01);
    LinearAttentionVariables inputs{rows, rows, rows, {}, {}};
    inputs.log_decay = Variable(growth);
    linear_attention_causal(inputs, {});
    return inner_->forward(x, context, state);
  }
};

// Declares the cost of a wrong formula.
template <typename Change>
class Miscounts : public Wrapped {
  using Wrapped::Wrapped;
  MixerResult change(const Variable& x, const MixerContext& context,
                     const MixerState& state) const override {
    return inner_->forward(x, context, state);
  }
  MixerCost cost(const MixerShape& shape) const override {
    MixerCost cost = inner_->cost(shape);
    Change()(cost, shape);
    return cost;
  }
};
struct HalvesMixing {
  void operator()(MixerCost& cost, const MixerShape&) const { cost.mixing /= 2; }
};
struct AddsToMixing {
  void operator()(MixerCost& cost, const MixerShape&) const { cost.mixing *= 1.25; }
};
struct MixesInLinearTime {
  void operator()(MixerCost& cost, const MixerShape& shape) const {
    cost.mixing *= 64 / static_cast<double>(shape.queries);
  }
};
struct CountsTooMuch {
  void operator()(MixerCost& cost, const MixerShape&) const { cost.mixing *= 16; }
};
struct ForgetsAProjection {
  void operator()(MixerCost& cost, const MixerShape&) const { cost.projections *= 0.75; }
};
struct ForgetsTheState {
  void operator()(MixerCost& cost, const MixerShape& shape) const {
    cost.bytes -= static_cast<double>(8 * shape.batch * shape.queries);
  }
};
struct ForgetsTheBatch {
  void operator()(MixerCost& cost, const MixerShape& shape) const {
    cost.mixing /= static_cast<double>(shape.batch);
  }
};

// The checks that fail for a causal mechanism, each once.
std::vector<std::string> failures_of(const Mechanism& mechanism) {
  std::vector<std::string> failed;
  for (const CheckResult& result : run_conformance(mechanism, Form::causal)) {
    const bool known = std::count(failed.begin(), failed.end(), result.check) > 0;
    if (!result.passed && !known) failed.push_back(result.check);
  }
  return failed;
}

template <typename Wrong>
Mechanism wrong() {
  Mechanism mechanism = find_mechanism("softmax");
  mechanism.name = "wrong";
  mechanism.variants.clear();
  mechanism.bind = [](const ConfigNode& parameters) -> MixerFactory {
    return [make = find_mechanism("softmax").bind(parameters)](const MixerOptions& options,
                                                               const MixerScope& scope) {
      return std::make_unique<Wrong>(make(options, scope));
    };
  };
  return mechanism;
}

template <typename Wrong>
std::vector<std::string> failures() {
  return failures_of(wrong<Wrong>());
}

TEST(ConformanceRejects, AMixerThatLooksAhead) {
  EXPECT_TRUE(contains(failures<LooksAhead>(), "causality"));
}
TEST(ConformanceRejects, AMixerThatForgetsTheMask) {
  EXPECT_TRUE(contains(failures<ForgetsMask>(), "padding"));
}
TEST(ConformanceRejects, AMixerWhosePaddedTokensReadSomething) {
  EXPECT_TRUE(contains(failures<ReadsPadding>(), "padding"));
}
TEST(ConformanceRejects, AMixerThatDropsItsState) {
  EXPECT_TRUE(contains(failures<DropsState>(), "chunks"));
}
TEST(ConformanceRejects, AMixerThatForgetsAtACallOfNoTokens) {
  EXPECT_EQ(failures<ForgetsAtNothing>(), std::vector<std::string>{"empty"});
}
TEST(ConformanceRejects, AMixerThatIgnoresSegments) {
  EXPECT_EQ(failures<IgnoresSegments>(), std::vector<std::string>{"packing"});
}
TEST(ConformanceRejects, AMixerWithAWrongGradient) {
  EXPECT_TRUE(contains(failures<WrongGradient>(), "gradients"));
}
TEST(ConformanceRejects, AWrongGradientOfEveryTensor) {
  const std::string refusal = refusal_of(wrong<WrongGradient>(), Form::causal, "gradients");
  for (const char* tensor : {"x", "q.weight", "k.weight", "v.bias", "x with dropout",
                             "x from a state", "state.v from a state"}) {
    EXPECT_TRUE(contains(refusal, concat(" ", tensor, ": analytic "))) << tensor << ": " << refusal;
  }
}
// Twice what it is in bf16 alone: a factor that no rounding makes.
TEST(ConformanceRejects, AGradientThatIsWrongInBf16) {
  const std::string refusal = refusal_of(wrong<ScalesBf16Gradient>(), Form::causal, "bf16");
  for (const char* tensor : {"x", "q.weight", "v.bias"}) {
    EXPECT_TRUE(contains(refusal, concat(" ", tensor, ": error of 0.0"))) << refusal;
  }
}
TEST(ConformanceRejects, AMixerThatMixesRows) {
  EXPECT_TRUE(contains(failures<MixesRows>(), "rows"));
}

template <typename Change>
void expect_cost_refused() {
  EXPECT_EQ(failures<Miscounts<Change>>(), std::vector<std::string>{"cost"});
}
TEST(ConformanceRejects, AWrongCost) {
  expect_cost_refused<HalvesMixing>();
  expect_cost_refused<AddsToMixing>();
  expect_cost_refused<MixesInLinearTime>();
  expect_cost_refused<ForgetsAProjection>();
  expect_cost_refused<ForgetsTheState>();
  expect_cost_refused<ForgetsTheBatch>();
}

TEST(ConformanceRejects, ProductsThatNoKernelReports) {
  EXPECT_TRUE(contains(refusal_of(wrong<Miscounts<CountsTooMuch>>(), Form::causal, "cost"),
                       "reports its products with count_multiply_adds"));
}

// Every trait that may be declared falsely, by name.
TEST(ConformanceRejects, AFalseForm) {
  EXPECT_TRUE(contains(refusal_of(wrong<LooksAhead>(), Form::causal, "causality"),
                       "trait causal: changing tokens"));
  Mechanism causal = find_mechanism("softmax");
  causal.bind = [](const ConfigNode& parameters) -> MixerFactory {
    return [make = find_mechanism("softmax").bind(parameters)](const MixerOptions& options,
                                                               const MixerScope& scope) {
      MixerOptions changed = options;
      changed.form = Form::causal;
      return make(changed, scope);
    };
  };
  EXPECT_TRUE(contains(refusal_of(causal, Form::noncausal, "traits"), "trait noncausal: is true"));
  EXPECT_TRUE(contains(refusal_of(wrong<IgnoresTheSource>(), Form::cross, "traits"),
                       "trait cross: is true"));
}
TEST(ConformanceRejects, AFalseDecodeState) {
  EXPECT_TRUE(contains(refusal_of(wrong<KeepsNothing>(), Form::causal, "state_size"),
                       "trait decode_state: is true"));
  const Mechanism denied = declared("softmax", [](MixerTraits& t) { t.decode_state = false; });
  EXPECT_TRUE(
      contains(refusal_of(denied, Form::causal, "state_size"), "trait decode_state: is false"));
  const Mechanism useless = declared("softmax", [](MixerTraits& t) { t.causal = false; });
  EXPECT_TRUE(contains(refusal_of(useless, Form::noncausal, "traits"),
                       "trait decode_state: is true, but there is no causal form"));
}
TEST(ConformanceRejects, AMixerWithAPositiveLogDecay) {
  EXPECT_TRUE(contains(failures<LetsAStateGrow>(), "reference"));
}

TEST(ConformanceRejects, AMixerWithoutTheRotaryPositionsThatWereAskedFor) {
  Mechanism mechanism = find_mechanism("softmax");
  mechanism.bind = [](const ConfigNode& parameters) -> MixerFactory {
    return [make = find_mechanism("softmax").bind(parameters)](const MixerOptions& options,
                                                               const MixerScope& scope) {
      MixerOptions changed = options;
      changed.rotary_width = 0;
      return make(changed, scope);
    };
  };
  EXPECT_TRUE(contains(failures_of(mechanism), "reference"));
}

TEST(ConformanceRejects, AGrowthThatTheCostContradicts) {
  Mechanism mechanism = find_mechanism("softmax");
  const auto before = mechanism.traits_of;
  mechanism.traits_of = [before](const ConfigNode& parameters) {
    MixerTraits traits = before(parameters);
    traits.growth = "T";
    return traits;
  };
  for (const CheckResult& result : run_conformance(mechanism, Form::causal, ConfigNode::map())) {
    EXPECT_EQ(result.passed, result.check != "cost") << result.message;
  }
}

TEST(ConformanceRejects, AnExemptionWithoutAReason) {
  Mechanism mechanism = find_mechanism("softmax");
  const auto before = mechanism.traits_of;
  mechanism.traits_of = [before](const ConfigNode& parameters) {
    MixerTraits traits = before(parameters);
    traits.exempt["causality"] = "";
    return traits;
  };
  const auto results = run_conformance(mechanism, Form::causal, ConfigNode::map());
  ASSERT_EQ(results.size(), 1u);
  EXPECT_FALSE(results[0].passed);
}

}  // namespace
}  // namespace linnet
