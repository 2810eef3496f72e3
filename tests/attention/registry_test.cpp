// The registry: strict reading of attention sections, suggestions, refused forms and duplicates.
#include "attention/registry.h"

#include <gtest/gtest.h>

#include "attention/case.h"
#include "attention/explain.h"
#include "attention/plugin_loader.h"
#include "autograd/activation.h"
#include "core/files.h"
#include "tests/data_path.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

ConfigNode section(const std::vector<std::pair<std::string, std::string>>& entries) {
  ConfigNode node = ConfigNode::map();
  for (const auto& [key, value] : entries) node.set(key, ConfigNode::scalar(value));
  return node;
}

template <typename Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Registry, FindsEveryListedMechanism) {
  ASSERT_FALSE(mechanisms().empty());
  for (const Mechanism& mechanism : mechanisms()) {
    EXPECT_EQ(&find_mechanism(mechanism.name), &mechanism);
    EXPECT_FALSE(mechanism.equation.empty()) << mechanism.name;
    EXPECT_FALSE(mechanism.sources.empty()) << mechanism.name;
    EXPECT_FALSE(mechanism.complexity.empty()) << mechanism.name;
  }
}

TEST(Registry, MisspeltNameIsAnsweredWithTheNearest) {
  EXPECT_NE(refusal([] { find_mechanism("sofmax"); }).find("did you mean 'softmax'?"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              make_mixer_factory(section({{"name", "sotfmax"}}), Form::causal);
            }).find("did you mean 'softmax'?"),
            std::string::npos);
}

// Unknown names have codes and keys, wherever they come from.
TEST(Registry, NamesThatNothingHasAreRefusedByKey) {
  const auto causes = [](const auto& body) { return test::causes_of<UsageError>(body); };
  EXPECT_EQ(causes([] { find_mechanism("sofmax"); }), "unknown_name name");
  EXPECT_EQ(causes([] {
              find_mechanism("relu").resolve(section({{"preset", "leapforme"}}));
            }),
            "unknown_name preset at (built in)");
  EXPECT_EQ(causes([] { case_mode_from_name("serial"); }), "unknown_name mode");
  EXPECT_EQ(causes([] { form_from_name("acausal"); }), "unknown_name form");
  EXPECT_EQ(causes([] { projection_init("zero", 1, 2, 2); }), "unknown_name init");
  EXPECT_EQ(causes([] { activation_from_name("swish"); }), "unknown_name activation");
  EXPECT_EQ(causes([] { dtype_from_name("f16"); }), "unknown_name dtype");
  const std::string path = join_path(test::source_dir(), "README.md");
  EXPECT_EQ(causes([&] { load_plugin("nowhere.so"); }), "not_found --plugin at nowhere.so");
  EXPECT_EQ(causes([&] { load_plugin(path); }), concat("malformed --plugin at ", path));
}

TEST(Registry, MisspeltParameterIsRefused) {
  EXPECT_NE(refusal([] {
              make_mixer_factory(section({{"name", "softmax"}, {"scal", "1"}}), Form::causal);
            }).find("did you mean 'scale'?"),
            std::string::npos);
}

TEST(Registry, DuplicateNameIsRefused) {
  EXPECT_NE(refusal([] { register_mechanism(find_mechanism("softmax")); }).find("twice"),
            std::string::npos);
}

TEST(Registry, FactoryBuildsAMixerWhoseParametersHaveNames) {
  const MixerFactory factory =
      make_mixer_factory(section({{"name", "softmax"}, {"dropout", "0.1"}}), Form::causal);
  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = 8;
  options.heads = 2;
  EXPECT_NE(factory(options, {root.child("own"), root.child("tied")}), nullptr);
  EXPECT_EQ(set.find("own.q.weight").shape, Shape({8, 8}));
}

TEST(Registry, UndefinedFormIsRefusedWithASentence) {
  const std::string why = refusal([] {
    make_mixer_factory(section({{"name", "local"}}), Form::cross);
  });
  EXPECT_NE(why.find("no cross form of 'local'"), std::string::npos) << why;
  EXPECT_NE(why.find("noncausal, causal"), std::string::npos) << why;
}

TEST(Registry, PresetsSetOptionsAndExplicitOnesWin) {
  const Mechanism& relu = find_mechanism("relu");
  const ConfigNode preset = relu.resolve(section({{"preset", "leapformer"}}));
  EXPECT_EQ(preset.find("floor")->raw(), "0.1");
  EXPECT_TRUE(preset.find("scale")->is_null());
  const ConfigNode both = relu.resolve(section({{"preset", "leapformer"}, {"floor", "0.5"}}));
  EXPECT_EQ(both.find("floor")->raw(), "0.5");
  // The resolved section reads back to itself.
  EXPECT_TRUE(relu.resolve(both) == both);
  EXPECT_NE(refusal([&] {
              relu.resolve(section({{"preset", "leapforme"}}));
            }).find("did you mean 'leapformer'?"),
            std::string::npos);
}

TEST(Registry, EveryPresetAndItsResolutionAreValid) {
  for (const Mechanism& mechanism : mechanisms()) {
    for (const Preset& preset : mechanism.presets) {
      const ConfigNode resolved = mechanism.resolve(section({{"preset", preset.name}}));
      EXPECT_TRUE(mechanism.resolve(resolved) == resolved) << mechanism.name << preset.name;
    }
  }
}

TEST(Registry, RankBeyondTheHeadIsRefused) {
  const MixerFactory factory =
      make_mixer_factory(section({{"name", "lavo"}, {"rank", "9"}}), Form::causal);
  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = 16;
  options.heads = 2;
  EXPECT_NE(refusal([&] {
              factory(options, {root.child("own"), root.child("tied")});
            }).find("rank 9 exceeds"),
            std::string::npos);
}

TEST(Registry, LavoRefusesASeparateAttentionThatNothingWouldRead) {
  const auto refused = [](const char* code, Form form) {
    return refusal([&] {
      make_mixer_factory(section({{"name", "lavo"}, {"pre_agg", "separate"}, {"code_input", code}}),
                         form);
    });
  };
  for (const char* code : {"x", "v", "k"}) {
    EXPECT_NE(refused(code, Form::causal).find("compresses no attention output"), std::string::npos)
        << code;
  }
  for (const char* code : {"auto", "f_local"}) {
    EXPECT_EQ(refused(code, Form::causal), "nothing was thrown") << code;
    EXPECT_EQ(refused(code, Form::noncausal), "nothing was thrown") << code;
    EXPECT_NE(refused(code, Form::cross).find("no cross form of 'lavo' with pre_agg: separate"),
              std::string::npos)
        << code;
  }
}

// Parameters of one layer beyond those of softmax attention.
int64_t added(const ConfigNode& config, int64_t width, int64_t heads, Form form = Form::causal) {
  MixerOptions options;
  options.width = width;
  options.heads = heads;
  options.max_length = 512;
  options.form = form;
  const auto count = [&](const ConfigNode& attention) {
    ParameterSet set;
    const ParameterScope root(set);
    make_mixer_factory(attention, form)(options, {root.child("own"), root.child("tied")});
    return set.count();
  };
  return count(config) - count(section({{"name", "softmax"}}));
}

TEST(Registry, LeapformerAddsTheParametersThatItsPaperCounts) {
  // A layer with heads of 32 (Long Range Arena), of 64 (GPT) and of 32 (translation).
  struct Count {
    const char* hidden;
    int64_t width, expected;
  };
  for (const Count& count : {Count{"1", 64, 66}, Count{"2", 64, 138}, Count{"16", 64, 1090},
                             Count{"32", 64, 2178}, Count{"16", 128, 2114}, Count{"8", 64, 546}}) {
    EXPECT_EQ(added(section({{"name", "leapformer"}, {"hidden", count.hidden}}), count.width, 2),
              count.expected)
        << count.hidden;
  }
}

TEST(Registry, MechanismsAddTheParametersThatTheirPapersCount) {
  for (const char* name : {"linear", "relu", "rope_linear", "performer", "transnormer_norm",
                           "transnormer_diag", "cosformer", "local", "yoso", "abc_random",
                           "abc_cluster", "abc_window", "abc_dilated", "abc_l2g"}) {
    EXPECT_EQ(added(section({{"name", name}}), 1024, 8), 0) << name;
  }
  EXPECT_EQ(added(section({{"name", "abc_compressive"}}), 1024, 8, Form::noncausal), 0);
  // H k (K + 1); sigma, and a gate per head.
  EXPECT_EQ(added(section({{"name", "t2r"}, {"features", "32"}}), 1024, 8), 33024);
  EXPECT_EQ(added(section({{"name", "rfa"}}), 1024, 8), 1024);
  EXPECT_EQ(added(section({{"name", "rfa"}, {"gate", "true"}}), 1024, 8), 1024 + 8 * 1025);
  // The basis H r K, and one element per head and distance, 2 w - 1 distances.
  EXPECT_EQ(added(section({{"name", "lavo"}, {"epe", "off"}}), 768, 12), 64 * 768);
  EXPECT_EQ(added(section({{"name", "lavo"}}), 768, 12), 64 * 768 + 12 * 31);
  EXPECT_EQ(added(section({{"name", "lavo"}, {"epe", "off"}}), 512, 8), 64 * 512);
  // RoBERTa base with 128 slots: H N E, one for all layers.
  EXPECT_EQ(added(section({{"name", "abc_mlp"}, {"preset", "abc_mlm"}}), 768, 12, Form::noncausal),
            12 * 128 * 768);
}

TEST(MechanismTable, IsTheOneInTheReadme) {
  const std::string readme = read_file(test::source_dir() + "/attention/README.md");
  EXPECT_NE(readme.find(mechanism_table()), std::string::npos)
      << "attention/README.md should contain\n"
      << mechanism_table();
  for (const Mechanism& mechanism : mechanisms()) {
    const std::string page =
        read_file(concat(test::source_dir(), "/attention/", mechanism.name, "/README.md"));
    for (const FieldSchema& field : mechanism.schema().fields) {
      if (field.name == "preset") continue;
      EXPECT_NE(page.find("`" + field.name + "`"), std::string::npos)
          << mechanism.name << "/README.md does not explain " << field.name;
    }
    for (const Preset& preset : mechanism.presets) {
      EXPECT_NE(page.find("`" + preset.name + "`"), std::string::npos)
          << mechanism.name << "/README.md does not name the preset " << preset.name;
    }
  }
}

TEST(AgreementTable, HasALineForEveryMechanism) {
  const std::string readme = read_file(test::source_dir() + "/attention/README.md");
  const size_t begin = readme.find("\n## Agreement with official code\n");
  ASSERT_NE(begin, std::string::npos);
  const std::string section = readme.substr(begin, readme.find("\n## ", begin + 1) - begin);
  for (const Mechanism& mechanism : mechanisms()) {
    const std::string line =
        concat("\n| [", mechanism.name, "](", mechanism.name, "/README.md) | ");
    EXPECT_NE(section.find(line), std::string::npos) << mechanism.name;
  }
}

}  // namespace
}  // namespace linnet
