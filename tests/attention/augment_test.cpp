// Augmentation of other mechanisms: the conformance suite on augmented hosts, options, parameters.
#include "attention/conformance/conformance.h"
#include "attention/explain.h"
#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/error_helpers.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

ConfigNode parsed(const std::string& text) {
  return parse_yaml(text, "parameters");
}

struct Host {
  const char* name;
  const char* parameters;
};

TEST(Augment, AugmentedHostsPassTheSuite) {
  const Host hosts[] = {{"linear", "{augment: {conv: 5, local: 7}}"},
                        {"abc_mlp", "{augment: {conv: 4, local: 6, kappa: softmax}}"},
                        {"local", "{window: 3, augment: {conv: 0, local: 9}}"}};
  for (const Host& host : hosts) {
    for (const Form form : {Form::noncausal, Form::causal}) {
      for (const CheckResult& result :
           run_conformance(find_mechanism(host.name), form, parsed(host.parameters))) {
        EXPECT_TRUE(result.passed) << host.name << ", " << name_of(form) << ", " << result.check
                                   << " of " << result.parameters << ": " << result.message;
      }
    }
  }
}

TEST(Augment, DefaultsAreFilledInAndReadBack) {
  const Mechanism& linear = find_mechanism("linear");
  const ConfigNode resolved = linear.resolve(parsed("{augment: {local: 64}}"));
  const ConfigNode* augment = resolved.find("augment");
  ASSERT_NE(augment, nullptr);
  EXPECT_EQ(augment->find("conv")->raw(), "63");
  EXPECT_EQ(augment->find("local")->raw(), "64");
  EXPECT_EQ(augment->find("kappa")->raw(), "relu2_l2");
  EXPECT_TRUE(linear.resolve(resolved) == resolved);
  EXPECT_FALSE(linear.resolve(parsed("{}")).contains("augment"));
}

TEST(Augment, WhatMakesNoSenseIsRefused) {
  const auto refusal = [](const char* text) {
    return test::message_of<UsageError>([&] { find_mechanism("linear").resolve(parsed(text)); });
  };
  EXPECT_NE(refusal("{augment: {conf: 3}}").find("did you mean 'conv'?"), std::string::npos);
  EXPECT_NE(refusal("{augment: {conv: 0}}").find("augment adds nothing"), std::string::npos);
  const auto causes = [](const char* text) {
    return test::causes_of<UsageError>([&] { find_mechanism("linear").resolve(parsed(text)); });
  };
  EXPECT_EQ(causes("{augment: {cnv: 3, local: 0}}"),
            "unknown_key augment.cnv at parameters:1:12\n"
            "out_of_range augment.local at parameters:1:27");
  EXPECT_EQ(causes("{augment: {conv: -1}}"), "out_of_range augment.conv at parameters:1:18");
  EXPECT_EQ(causes("{augment: 3}"), "wrong_type augment at parameters:1:11");
  EXPECT_EQ(causes("{augment: {conv: 0}}"), "conflict augment at parameters:1:11");
  EXPECT_EQ(causes("{augmen: {conv: 3}}"), "unknown_key augmen at parameters:1:2");
}

TEST(Augment, BranchesNeedWhatTheyRead) {
  const auto causes = [](const char* mechanism, const char* parameters) {
    ParameterSet set;
    const ParameterScope root(set);
    MixerOptions options;
    options.width = 8;
    options.heads = options.max_length = 2;
    options.form = Form::noncausal;
    return test::causes_of<UsageError>([&] {
      find_mechanism(mechanism).make(parsed(parameters), options,
                                     {root.child("own"), root.child("tied")});
    });
  };
  EXPECT_EQ(causes("reformer", "{augment: {local: 4}}"), "conflict augment.local");
  EXPECT_EQ(causes("linformer", "{one_kv_head: true, augment: {conv: 5}}"), "conflict augment");
}

// Parameters beyond those of softmax attention.
int64_t added(const std::string& attention, Form form) {
  const auto count = [&](const std::string& text) {
    ParameterSet set;
    const ParameterScope root(set);
    MixerOptions options;
    options.width = 64;
    options.heads = 4;
    options.form = form;
    make_mixer_factory(parsed(text), form)(options, {root.child("own"), root.child("tied")});
    return set.count();
  };
  return count(attention) - count("{name: softmax}");
}

TEST(Augment, WhatHasNoHeadsToPutItBesideRefusesIt) {
  for (const std::string host : {"luna", "s4d", "flash", "flash_quad", "flash_local, kind: gau",
                                 "flash_global, kind: gau"}) {
    const std::string name = host.substr(0, host.find(','));
    EXPECT_NE(test::message_of<UsageError>([&] {
                added(concat("{name: ", host, ", augment: {conv: 5}}"), Form::causal);
              }).find(concat("'", name, "' has no queries, keys and values of heads")),
              std::string::npos)
        << host;
  }
}

// The released code stores 63 taps per head; a causal layer uses 32 of them.
TEST(Augment, OnlyTapsThatActAreParameters) {
  EXPECT_EQ(added("{name: augmented_linear}", Form::causal), 4 * 32 + 1);
  EXPECT_EQ(added("{name: augmented_linear, conv: 9}", Form::causal), 4 * 5 + 1);
  // And 32 buckets of distances per head.
  EXPECT_EQ(added("{name: augmented_linear, preset: t5}", Form::causal), 4 * 5 + 1 + 4 * 32);
  EXPECT_EQ(added("{name: augmented_linear, alpha: one}", Form::noncausal), 4 * 63);
  EXPECT_EQ(added("{name: augmented_linear}", Form::cross), 0);
  EXPECT_EQ(added("{name: grouped_linear}", Form::causal), 1);
  EXPECT_EQ(added("{name: flash_global}", Form::causal), 0);
  EXPECT_EQ(added("{name: linear, augment: {conv: 63, local: 64}}", Form::causal), 4 * 32);
  EXPECT_EQ(added("{name: linear, augment: {conv: 63, local: 64}}", Form::cross), 0);
}

// Filters and alpha begin at 0: an augmented layer begins as its host, or as attention in groups.
TEST(Augment, ZeroFiltersBeginWithoutEffect) {
  const auto first = [](const std::string& text) {
    ParameterSet set;
    const ParameterScope root(set);
    MixerOptions options;
    options.width = 16;
    options.heads = 2;
    const auto mixer = make_mixer_factory(parsed(text), Form::causal)(
        options, {root.child("own"), root.child("tied")});
    set.materialize(5, DType::f64, DType::f64);
    const Variable x(test::random_tensor({1, 20, 16}, "x"));
    return mixer->forward(x, {}, {}).y.value();
  };
  EXPECT_TRUE(test::close(first("{name: linear, augment: {conv: 9}}"), first("{name: linear}"), 0));
  EXPECT_FALSE(test::close(first("{name: linear, augment: {conv: 9, conv_init: uniform}}"),
                           first("{name: linear}"), 1e-6));
  EXPECT_TRUE(test::close(first("{name: augmented_linear, group: 7}"),
                          first("{name: flash_local, group: 7}"), 0));
}

TEST(Augment, ShowListsItWhereItIsTaken) {
  const JsonValue plain = explain_mechanism(find_mechanism("relu"), ConfigNode::map());
  EXPECT_EQ(plain.at("augment").at("value").text(), "null");
  EXPECT_NE(format_explanation(plain).find("augment: null\n"), std::string::npos);
  EXPECT_NE(format_explanation(plain).find("{conv: 63, local: none, "), std::string::npos);
  const JsonValue augmented =
      explain_mechanism(find_mechanism("relu"), parsed("{augment: {conv: 5}}"));
  EXPECT_EQ(augmented.at("augment").at("options").elements()[0].at("value").text(), "5");
  EXPECT_EQ(explain_mechanism(find_mechanism("luna"), ConfigNode::map()).find("augment"), nullptr);
}

}  // namespace
}  // namespace linnet
