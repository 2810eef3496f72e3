// Traits that are declared falsely: the conformance suite must name each.
#include <gtest/gtest.h>

#include "core/yaml.h"
#include "tests/attention/rejected.h"

namespace linnet {
namespace {

TEST(FalseTraits, AFalseConstantState) {
  const Mechanism grows = declared("softmax", [](MixerTraits& t) { t.constant_state = true; });
  EXPECT_TRUE(
      contains(refusal_of(grows, Form::causal, "state_size"), "trait constant_state: is true"));
  const Mechanism stays = declared("linear", [](MixerTraits& t) { t.constant_state = false; });
  EXPECT_TRUE(
      contains(refusal_of(stays, Form::causal, "state_size"), "trait constant_state: is false"));
  const Mechanism none = declared("linear", [](MixerTraits& t) { t.decode_state = false; });
  EXPECT_TRUE(contains(refusal_of(none, Form::noncausal, "traits"),
                       "trait constant_state: is true, but the trait decode_state is false"));
}
TEST(FalseTraits, AFalseDependenceOnTheLength) {
  const auto depends = [](bool value) {
    return [value](MixerTraits& t) { t.depends_on_length = value; };
  };
  EXPECT_TRUE(contains(refusal_of(declared("linear", depends(true)), Form::noncausal, "traits"),
                       "trait depends_on_length: is true"));
  EXPECT_TRUE(contains(refusal_of(declared("cosformer", depends(false)), Form::noncausal, "traits"),
                       "trait depends_on_length: is false"));
}
TEST(FalseTraits, AFalseCouplingOfHeads) {
  const Mechanism apart = declared("linear", [](MixerTraits& t) { t.couples_heads = true; });
  EXPECT_TRUE(contains(refusal_of(apart, Form::causal, "heads"), "trait couples_heads: is true"));
  const Mechanism coupled =
      declared("transnormer_norm", [](MixerTraits& t) { t.couples_heads = false; });
  EXPECT_TRUE(
      contains(refusal_of(coupled, Form::causal, "heads", parse_yaml("{norm_axis: model}", "test")),
               "trait couples_heads: is false"));
  // By the largest key of all heads, which the first head's must become.
  const Mechanism by_maximum =
      declared("performer", [](MixerTraits& t) { t.couples_heads = false; });
  EXPECT_TRUE(contains(
      refusal_of(by_maximum, Form::noncausal, "heads", parse_yaml("{key_maximum: tensor}", "test")),
      "trait couples_heads: is false"));
}
TEST(FalseTraits, AFalseGrowth) {
  const auto grows = [](const char* name, const char* as) {
    return refusal_of(declared(name, [as](MixerTraits& t) { t.growth = as; }), Form::causal,
                      "cost");
  };
  EXPECT_TRUE(contains(grows("softmax", "T"), "trait growth: is T, but"));
  EXPECT_TRUE(contains(grows("linear", "T^2"), "trait growth: is T^2, but"));
}
TEST(FalseTraits, AFalseExemption) {
  const Mechanism excused =
      declared("linear", [](MixerTraits& t) { t.exempt["padding"] = "it seemed hard"; });
  EXPECT_TRUE(contains(refusal_of(excused, Form::causal, "padding"),
                       "trait exempt: says 'it seemed hard', but the check passes"));
  // Where it means nothing in one form and passes in the other.
  const Mechanism half =
      declared("linear", [](MixerTraits& t) { t.exempt["causality"] = "it seemed hard"; });
  for (const Form form : {Form::noncausal, Form::causal}) {
    EXPECT_TRUE(contains(refusal_of(half, form, "causality"),
                         "trait exempt: says 'it seemed hard', but the check passes"));
  }
}
TEST(FalseTraits, AnExemptionThatAppliesToNoForm) {
  const Mechanism excused = declared("linear", [](MixerTraits& t) {
    t.causal = t.cross = t.decode_state = t.constant_state = false;
    t.exempt["causality"] = "it seemed hard";
  });
  EXPECT_EQ(refusal_of(excused, Form::noncausal, "causality"),
            "trait exempt: says 'it seemed hard', but the check 'causality' applies to no form of "
            "linear; remove the exemption");
}

}  // namespace
}  // namespace linnet
