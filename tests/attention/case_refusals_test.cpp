// `linnet attention run`: bad cases are refused, whole, by code and key.
#include "attention/explain.h"
#include "attention/mixer_keys.h"
#include "core/yaml.h"
#include "tests/attention/case_file.h"
#include "tests/attention/made_mixer.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using namespace test;

// What was given would otherwise be left out without a word.
TEST(AttentionCase, AStateThatNothingReadsIsRefused) {
  CaseFile file = make_case(find_mechanism("reformer"), Form::causal);
  file.tensors["state/keys"] = draw({kRows, 1, kWidth}, "x");
  EXPECT_EQ(causes([&] { run(file, CaseMode::parallel); }), "conflict state at CASE.h5");
  file = make_case(find_mechanism("softmax"), Form::noncausal);
  file.tensors["state/keys"] = draw({kRows, 1, kWidth}, "x");
  EXPECT_EQ(causes([&] { run(file, CaseMode::parallel); }), "conflict state at CASE.h5");
}

TEST(AttentionCase, AStateOfAnotherNameIsRefused) {
  for (const Mechanism& mechanism : mechanisms()) {
    if (!mechanism.traits.decode_state) continue;
    CaseFile file = make_case(mechanism, Form::causal);
    file.tensors.erase("cotangent");
    for (const auto& [name, tensor] : run(file, CaseMode::parallel)) {
      if (name.starts_with("state/")) file.tensors[name] = tensor;
    }
    file.tensors["state/none"] = draw({kRows, 1, kWidth}, "x");
    EXPECT_EQ(causes([&] { run(file, CaseMode::parallel); }), "unknown_key state/none at CASE.h5")
        << mechanism.name;
  }
}

// Every mechanism's own `bias` reaches it, and does not switch the projections' biases.
TEST(AttentionCase, AnOptionNamedBiasIsTheMechanisms) {
  for (const Mechanism& mechanism : mechanisms()) {
    const ConfigSchema schema = mechanism.schema();
    const FieldSchema* bias = schema.find("bias");
    for (const char* key : {"width", "heads", "rotary_width", "projection_bias"}) {
      EXPECT_EQ(schema.find(key), nullptr) << mechanism.name << ": run would take it for its own";
    }
    if (bias == nullptr) continue;
    for (const std::string& choice : bias->choices) {
      ConfigNode config = parse_yaml(concat("{width: 16, heads: 2, bias: ", choice, "}"), "config");
      MixerOptions options;
      take_mixer_keys(config, mechanism, true, options);
      ASSERT_NE(config.find("bias"), nullptr) << mechanism.name;
      EXPECT_EQ(config.find("bias")->raw(), choice) << mechanism.name;
      EXPECT_TRUE(options.bias) << mechanism.name;
    }
  }
  // T5's bias of softmax is one more parameter, tied across layers, beside those of projections.
  CaseFile file = make_case(find_mechanism("softmax"), Form::causal);
  const auto plain = run(file, CaseMode::parallel);
  file.config = "{width: 16, heads: 2, bias: t5}";
  EXPECT_EQ(causes([&] { run(file, CaseMode::parallel); }),
            "missing_key params/distance_bias at CASE.h5");
  file.tensors["params/distance_bias"] = draw({64, 1}, "distance");
  const auto biased = run(file, CaseMode::parallel);
  EXPECT_GT(difference(biased.at("outputs/y"), plain.at("outputs/y")), 1e-3);
  EXPECT_TRUE(biased.contains("grads/params/q.bias"));
}

TEST(AttentionCase, ProjectionsHaveBiasesUnlessTheConfigSaysNo) {
  CaseFile file = make_case(find_mechanism("softmax"), Form::causal);
  for (const char* name : {"q", "k", "v", "out"})
    file.tensors.erase(concat("params/", name, ".bias"));
  for (const char* text :
       {"projection_bias: false", "bias: false", "projection_bias: false, bias: t5"}) {
    file.config = concat("{width: 16, heads: 2, ", text, "}");
    file.tensors.erase("params/distance_bias");
    if (file.config.find("t5") != std::string::npos) {
      file.tensors["params/distance_bias"] = draw({64, 1}, "distance");
    }
    EXPECT_FALSE(run(file, CaseMode::parallel).contains("grads/params/q.bias")) << text;
  }
  file.config = "{width: 16, heads: 2, projection_bias: false, bias: true}";
  EXPECT_EQ(causes([&] { run(file, CaseMode::parallel); }), "conflict bias at CASE.h5 config:1:53");
}

TEST(AttentionCase, AttributesAreThoseOfTheFormat) {
  CaseFile file = make_case(find_mechanism("softmax"), Form::causal);
  const auto with = [&](const std::vector<std::string>& names) {
    Hdf5Writer writer;
    for (const auto& [name, tensor] : file.tensors) writer.write(name, tensor);
    writer.set_attribute("/", "mechanism", file.mechanism);
    writer.set_attribute("/", "form", file.form);
    for (const std::string& name : names) writer.set_attribute("/", name, file.config);
    return causes([&] { run_case(writer.finish(), "CASE.h5", {}); });
  };
  EXPECT_EQ(with({"config"}), "nothing thrown");
  EXPECT_EQ(with({"config", "maxlength", "window"}),
            "unknown_key maxlength at CASE.h5\nunknown_key window at CASE.h5");
  EXPECT_EQ(with({"konfig"}), "missing_key config at CASE.h5\nunknown_key konfig at CASE.h5");
}

TEST(AttentionCase, EverythingThatIsMissingIsReportedTogether) {
  CaseFile file = make_case(find_mechanism("softmax"), Form::causal);
  for (const char* name : {"q.bias", "k.weight", "out.weight"}) {
    file.tensors.erase(concat("params/", name));
  }
  file.tensors["params/v.bias"] = draw({3}, "x");
  file.tensors["params/k.wieght"] = draw({1}, "x");
  EXPECT_EQ(causes([&] { run(file, CaseMode::parallel); }),
            "missing_key params/k.weight at CASE.h5\n"
            "missing_key params/q.bias at CASE.h5\n"
            "conflict params/v.bias at CASE.h5\n"
            "missing_key params/out.weight at CASE.h5\n"
            "unknown_key params/k.wieght at CASE.h5");
  EXPECT_NE(refusal(file).find("params/k.weight, params/q.bias, params/out.weight are missing"),
            std::string::npos);
  file = make_case(find_mechanism("softmax"), Form::causal);
  file.config = "{}";
  EXPECT_EQ(causes([&] { run(file, CaseMode::parallel); }),
            "missing_key width at CASE.h5 config:1:1\nmissing_key heads at CASE.h5 config:1:1");
  file.config = "{width: 16, heads: 2}";
  file.core = 1;
  EXPECT_EQ(causes([&] { run(file, CaseMode::parallel); }),
            "missing_key inputs/q at CASE.h5\nmissing_key inputs/k at CASE.h5\n"
            "missing_key inputs/v at CASE.h5");
}

// Keys that others than the mechanism read are expected too.
TEST(AttentionCase, ErrorsListEveryKeyThatIsExpected) {
  const auto listed = [](const auto& body) {
    const std::string text = test::message_of<UsageError>(body);
    return text.substr(std::min(text.find("unknown key"), text.size()));
  };
  CaseFile file = make_case(find_mechanism("linear"), Form::causal);
  file.config = "{width: 16, heads: 2, zzz: 1}";
  EXPECT_EQ(listed([&] { run(file, CaseMode::parallel); }),
            "unknown key 'zzz'; expected one of preset, scale, floor, normalizer, name, width, "
            "heads, rotary_width, projection_bias, augment");
  EXPECT_EQ(listed([] {
              explain_mechanism(find_mechanism("s4d"), parse_yaml("{zzz: 1}", "config"));
            }).find("augment"),
            std::string::npos);
  EXPECT_EQ(listed([] {
              make_mixer_factory(parse_yaml("{name: linear, zzz: 1}", "recipe"), Form::causal);
            }),
            "unknown key 'zzz'; expected one of preset, scale, floor, normalizer, name, augment");
  EXPECT_EQ(listed([] {
              explain_mechanism(find_mechanism("linear"), parse_yaml("{rotary: 8}", "config"));
            }),
            "unknown key 'rotary'; expected one of preset, scale, floor, normalizer, name, width, "
            "heads, rotary_width, projection_bias, max_length, augment");
}

TEST(AttentionCase, BadCasesAreRefusedWithASentence) {
  const CaseFile good = make_case(find_mechanism("softmax"), Form::causal);
  CaseFile bad = good;
  bad.tensors.erase("params/k.weight");
  EXPECT_NE(refusal(bad).find("params/k.weight is missing"), std::string::npos);
  bad = good;
  bad.tensors["params/q.wieght"] = draw({1}, "x");
  EXPECT_NE(refusal(bad).find("did you mean 'q.weight'"), std::string::npos);
  bad = good;
  bad.tensors["inputs/mask"] = Tensor::full({1, 2}, 1, DType::u8);
  EXPECT_NE(refusal(bad).find("expected inputs/mask [2, 21]"), std::string::npos);
  bad = good;
  bad.tensors["draws/projection"] = draw({2}, "x");
  EXPECT_NE(refusal(bad).find("'softmax' with this config draws nothing"), std::string::npos);
  bad = good;
  bad.tensors["input/x"] = draw({2}, "x");
  EXPECT_NE(refusal(bad).find("did you mean 'inputs'"), std::string::npos);
  bad = good;
  bad.form = "noncausal";
  EXPECT_EQ(causes([&] { run(bad, CaseMode::recurrent); }), "conflict mode at CASE.h5");
  bad.form = "causal";
  bad.config = "{width: 16, heads: 3}";
  EXPECT_NE(refusal(bad).find("multiple of heads"), std::string::npos);
}

TEST(AttentionCase, ACoreWithoutTheInputThatItReadsIsRefused) {
  MixerOptions options;
  options.width = 8;
  options.heads = 2;
  const Variable q(test::random_tensor({1, 3, 2, 4}, "q")), x(test::random_tensor({1, 3, 8}, "x"));
  for (const auto& [name, parameters] : {std::pair{"abc_mlp", "{slots: 2}"},
                                         {"abc_mlp", "{slots: 2, phi_input: head}"},
                                         {"lavo", "{rank: 2, code_input: x}"},
                                         {"synthesizer", "{kind: dense, max_length: 3}"}}) {
    const test::MadeMixer mixer(name, parameters, options);
    const std::string refusal = message_of<UsageError>([&] { mixer.mix(q, q, q, {}); });
    EXPECT_NE(refusal.find("inputs/x"), std::string::npos) << name << ": " << refusal;
    EXPECT_NO_THROW(mixer.mix(q, q, q, {}, {}, x)) << name;
  }
  // Tables of positions need none.
  const test::MadeMixer tables("synthesizer", "{max_length: 3}", options);
  EXPECT_NO_THROW(tables.mix(q, q, q, {}));
}

}  // namespace
}  // namespace linnet
