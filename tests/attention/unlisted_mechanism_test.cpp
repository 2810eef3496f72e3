// A mechanism from outside the list that draws and chooses in every call: its draws and choices are
// written, and given ones are used, in `attention run` and in the conformance suite.
#include <gtest/gtest.h>

#include "attention/case.h"
#include "attention/conformance/conformance.h"
#include "attention/define.h"
#include "attention/explain.h"
#include "attention/registry.h"
#include "autograd/arithmetic.h"
#include "core/hdf5.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 2, kLength = 5, kWidth = 8, kHeads = 2;

struct ToyParams {
  static void describe(ConfigDescription<ToyParams>&) {}
};

// y = gain_h v for tokens with v_0 > 0, else -v: a drawn gain of each head, a choice for each
// token. Its decode state says nothing, so that calls may follow each other.
class ToyMixer : public AttentionMixer {
 public:
  ToyMixer(const ToyParams&, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope) {}
  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    const int64_t B = input.v.size(0), T = input.v.size(1), H = input.v.size(2);
    const int64_t V = input.v.size(3);
    const Tensor gain = drawn(context, "gain", {H}, [&] {
      const Tensor draw = Tensor::empty({H}, DType::f64);
      for (int64_t h = 0; h < H; ++h) {
        draw.data<double>()[h] = draw_key(context).normal(static_cast<uint64_t>(h));
      }
      return draw;
    });
    const std::vector<double> v = input.v.value().to_vector<double>();
    const Tensor kept = chosen(context, "kept", {B, T}, Device{}, [&] {
      const Tensor choice = Tensor::empty({B, T}, DType::i32);
      for (int64_t i = 0; i < B * T; ++i) {
        choice.data<int32_t>()[i] = v[static_cast<size_t>(i * H * V)] > 0 ? 1 : 0;
      }
      return choice;
    });
    const Tensor factor = Tensor::empty(input.v.shape(), DType::f64);
    for (int64_t i = 0; i < factor.elements(); ++i) {
      const int64_t token = i / (H * V);
      const bool valid =
          !context.key_mask.defined() || context.key_mask.data<uint8_t>()[token] != 0;
      factor.data<double>()[i] = !valid                             ? 0
                                 : kept.data<int32_t>()[token] != 0 ? gain.data<double>()[i / V % H]
                                                                    : -1;
    }
    MixerState state;
    if (options().form == Form::causal) state["seen"] = Variable(Tensor::zeros({B, 1}));
    return {multiply(input.v, Variable(factor.to(input.v.dtype()))), state};
  }
  MixerCost mix_cost(const MixerShape& shape) const override {
    return {0, static_cast<double>(shape.queries), 0};
  }
};

Mechanism toy_mechanism() {
  Mechanism facts;
  facts.name = "toy";
  facts.title = facts.sources = facts.equation = facts.complexity = "a test's";
  facts.traits.noncausal = facts.traits.causal = facts.traits.decode_state = true;
  facts.traits.constant_state = true;
  facts.traits.couples_heads = true;
  facts.traits.growth = "T";
  facts.traits.exempt = {{"cost", "its products are element by element"},
                         {"traits", "no token reads another one"}};
  return define_mechanism<ToyParams, ToyMixer>(
      std::move(facts), [](const ToyParams&, const auto& s) {
        auto y = s.v;
        using Number = typename std::decay_t<decltype(y)>::value_type;
        const bool given = s.choices.contains("kept");
        for (int64_t i = 0; i < s.T; ++i) {
          const int64_t at = s.row * s.padded_length + s.begin + i;
          const bool kept =
              given ? s.choices.at("kept").template data<int32_t>()[at] != 0 : s.value(i, 0)[0] > 0;
          for (int64_t c = 0; c < s.H * s.V; ++c) {
            const double gain = s.draws.at("gain").template data<double>()[c / s.V];
            y[static_cast<size_t>(i * s.H * s.V + c)] *= static_cast<Number>(kept ? gain : -1);
          }
        }
        return y;
      });
}

using Tensors = std::map<std::string, Tensor>;

Tensor values(const Shape& shape, const std::string& name) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

Tensors run(const Tensors& tensors, CaseMode mode = CaseMode::parallel) {
  Hdf5Writer writer;
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.set_attribute("/", "mechanism", "toy");
  writer.set_attribute("/", "form", "causal");
  writer.set_attribute("/", "config", concat("{width: ", kWidth, ", heads: ", kHeads, "}"));
  CaseOptions options;
  options.dtype = DType::f64;
  options.mode = mode;
  return tensors_from_hdf5(run_case(writer.finish(), "toy.h5", options), "out");
}

std::string refusal(const Tensors& tensors, CaseMode mode = CaseMode::parallel) {
  try {
    run(tensors, mode);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

Tensors toy_case() {
  Tensors tensors;
  tensors["inputs/x"] = values({kRows, kLength, kWidth}, "x");
  for (const char* name : {"q", "k", "v", "out"}) {
    tensors[concat("params/", name, ".weight")] = values({kWidth, kWidth}, name);
    tensors[concat("params/", name, ".bias")] = values({kWidth}, concat(name, ".bias"));
  }
  return tensors;
}

TEST(UnlistedMechanism, DrawsAndChoicesOfACallAreWrittenAndTaken) {
  register_mechanism(toy_mechanism());
  Tensors tensors = toy_case();
  const Tensors first = run(tensors);
  ASSERT_EQ(first.at("draws/gain").shape(), Shape({kHeads}));
  ASSERT_EQ(first.at("choices/kept").shape(), Shape({kRows, kLength}));
  EXPECT_EQ(first.at("choices/kept").dtype(), DType::i64);
  tensors["draws/gain"] = Tensor::from(std::vector<double>{2, 4}, {kHeads});
  tensors["choices/kept"] = Tensor::full({kRows, kLength}, 1, DType::i64);
  tensors["choices/kept"].data<int64_t>()[kLength] = 0;
  const Tensors second = run(tensors);
  for (const char* name : {"draws/gain", "choices/kept"}) {
    EXPECT_EQ(second.at(name).to_vector<double>(), tensors.at(name).to_vector<double>()) << name;
  }
  const double drawn = first.at("draws/gain").data<double>()[0];
  for (int64_t token = 0; token < kRows * kLength; ++token) {
    const bool kept = first.at("choices/kept").data<int64_t>()[token] != 0;
    const double v =
        first.at("outputs/context").data<double>()[token * kWidth] / (kept ? drawn : -1);
    EXPECT_NEAR(second.at("outputs/context").data<double>()[token * kWidth],
                token == kLength ? -v : 2 * v, 1e-12);
  }

  tensors["draws/gain"] = values({3}, "x");
  EXPECT_NE(refusal(tensors).find("draws/gain: expected [2], got [3]"), std::string::npos);
  tensors.erase("draws/gain");
  tensors["draws/gian"] = values({2}, "x");
  EXPECT_NE(refusal(tensors).find("'draws/gian' is unknown: did you mean 'gain'"),
            std::string::npos);
  tensors.erase("draws/gian");
  tensors["choices/kepts"] = tensors.at("choices/kept");
  EXPECT_NE(refusal(tensors).find("did you mean 'kept'"), std::string::npos);
  EXPECT_NE(refusal(toy_case(), CaseMode::recurrent).find("choices/kept differ from call to call"),
            std::string::npos);

  const JsonValue shown = explain_mechanism(find_mechanism("toy"), ConfigNode::map());
  const JsonValue& form = shown.at("forms").elements()[0];
  EXPECT_EQ(form.at("draws").elements()[0].at("name").text(), "gain");
  EXPECT_EQ(form.at("choices").elements()[0].at("name").text(), "kept");
  EXPECT_FALSE(form.at("replaces_feed_forward").boolean());
}

TEST(UnlistedMechanism, ConformsWithItsDrawsAndChoices) {
  for (const CheckResult& result : run_conformance(toy_mechanism(), Form::noncausal)) {
    EXPECT_TRUE(result.passed) << result.check << ": " << result.message;
  }
}

}  // namespace
}  // namespace linnet
