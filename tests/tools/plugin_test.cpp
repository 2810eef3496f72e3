// Mechanisms from outside: what --plugin loads, what it refuses, and what becomes of a run. CTest
// builds the plugins first (Plugin.BuildsApartFromTheTree).
#include "attention/plugin.h"
#include "attention/registry.h"

#include <algorithm>
#include <filesystem>

#include "core/json.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PluginCli : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    ASSERT_TRUE(exists(plugin("fading_linear"))) << "not built: run ctest -R Plugin";
  }
  static std::string plugin(const std::string& name) {
    return join_path(parent_path(test::program()), concat("plugin/lib", name, ".so"));
  }
  // The loss at that line of the run's metrics.
  static double loss(const std::string& metrics, size_t line) {
    size_t begin = 0;
    for (size_t i = 0; i < line; ++i) begin = metrics.find('\n', begin) + 1;
    const size_t end = metrics.find('\n', begin);
    return parse_json(metrics.substr(begin, end - begin), "metrics").at("loss").number();
  }
  static std::vector<std::string> train(const std::string& run, int steps,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "train", "tiny.yaml", kAttention, "generate.tokens=0", concat("train.max_steps=", steps),
        "--out", run};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static constexpr const char* kAttention = "model.attention={name: fading_linear, decay: 0.8}";
  const std::string fading_ = plugin("fading_linear");
};

TEST_F(PluginCli, AnExampleIsListedShownAndPassesTheSuite) {
  const Outcome listed = linnet({"attention", "list", "--json", "--plugin", fading_});
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_EQ(parse_json(listed.out, "stdout").at("mechanisms").elements().back().at("name").text(),
            "fading_linear");
  EXPECT_THAT(linnet({"attention", "show", "--plugin", fading_, "fading_linear"}).out,
              HasSubstr("decay: 0.9"));
  const Outcome checked = linnet({"attention", "check", "fading_linear", "--plugin", fading_});
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
  EXPECT_THAT(checked.out, AllOf(HasSubstr("causality   ok"), HasSubstr(", 0 failed")));
  expect_error({"attention", "check", "fading_linear"}, 2, "(one of a plugin needs --plugin PATH)");
}

TEST_F(PluginCli, AMechanismThatLooksAheadIsRejectedByName) {
  const Outcome outcome =
      linnet({"attention", "check", "peeking_linear", "--plugin", plugin("peeking_linear")});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("peeking_linear, causal"),
                    HasSubstr("causality   FAILED: trait causal: changing tokens from ")));
}

TEST_F(PluginCli, ARunTrainsResumesAndNamesTheMissingPlugin) {
  EXPECT_EQ(linnet({"recipe", "check", "tiny.yaml", kAttention, "--plugin", fading_}).code, 0);
  const Outcome whole = linnet(train("whole", 30, {"--plugin", fading_}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const std::string metrics = read_file(folder_ / "whole/metrics.jsonl");
  EXPECT_TRUE(loss(metrics, 29) < 0.8 * loss(metrics, 0)) << metrics;
  EXPECT_THAT(read_file(folder_ / "whole/environment.json"), HasSubstr(fading_));

  const Outcome half = linnet(train("cut", 14, {"--plugin", fading_}));
  ASSERT_EQ(half.code, 0) << half.err;
  const std::string missing =
      concat("was trained with the mechanism 'fading_linear' of the plugin ", fading_,
             ", which is not loaded: add --plugin ", fading_);
  expect_error(train("cut", 30, {}), 2, missing);
  expect_error({"train", "tiny.yaml", kAttention, "--resume", "cut"}, 2, missing);
  expect_error(train("other", 30, {}), 2, "'fading_linear'");
  expect_error({"evaluate", "cut"}, 2, missing);
  expect_error({"generate", "cut", "--prompt", "line"}, 2, missing);
  const Outcome rest = linnet(train("cut", 30, {"--plugin", fading_}));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.err, AllOf(HasSubstr("continuing cut at step 14"), Not(HasSubstr("warning"))));
  EXPECT_EQ(read_file(folder_ / "cut/checkpoints/step-00000030/weights.h5"),
            read_file(folder_ / "whole/checkpoints/step-00000030/weights.h5"));

  const Outcome scored = linnet({"evaluate", "cut", "--plugin", fading_, "--carry-state"});
  EXPECT_EQ(scored.code, 0) << scored.err;
  EXPECT_EQ(scored.err, "");
  const std::string copy = folder_ / "changed.so";
  write_file(copy, read_file(fading_) + "\n");
  const Outcome changed = linnet({"generate", "cut", "--prompt", "line", "--plugin", copy});
  EXPECT_EQ(changed.code, 0) << changed.err;
  EXPECT_THAT(changed.err,
              HasSubstr(concat("mechanism 'fading_linear': the mechanism comes from ", copy,
                               " instead of ", fading_, " since checkpoint cut/")));
}

TEST_F(PluginCli, ARebuiltPluginIsNamedOnceWithWhatToDo) {
  const std::string own = folder_ / "own.so";
  write_file(own, read_file(fading_));
  ASSERT_EQ(linnet(train("run", 2, {"--plugin", own})).code, 0);
  write_file(own, read_file(fading_) + "\n");
  const Outcome outcome = linnet(train("run", 4, {"--plugin", own}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const size_t begin = outcome.err.find("mechanism 'fading_linear'");
  ASSERT_NE(begin, std::string::npos) << outcome.err;
  const std::string line = outcome.err.substr(begin, outcome.err.find('\n', begin) - begin);
  EXPECT_THAT(line,
              AllOf(HasSubstr(concat("the plugin ", own, " has been rebuilt since checkpoint")),
                    HasSubstr("load the plugin as it was, or train from the start in another "
                              "folder (--out)")));
  EXPECT_EQ(line.find(own, line.find(own) + 1), std::string::npos) << line;
}

TEST_F(PluginCli, WhatCannotBeUsedIsRefused) {
  const auto refused = [&](const std::vector<std::string>& plugins, const std::string& why) {
    std::vector<std::string> arguments = {"attention", "list"};
    for (const std::string& path : plugins) arguments.insert(arguments.end(), {"--plugin", path});
    expect_error(arguments, 2, why);
  };
  refused({plugin("other_abi")}, concat("was built for ABI 0 (another compiler), this linnet has ",
                                        LINNET_PLUGIN_ABI, ": build the plugin again"));
  std::string older = LINNET_PLUGIN_ABI;
  older.replace(0, older.find(' '), "3");
  refused({plugin("older_interface")},
          concat("was built for ABI ", older, ", this linnet has ", LINNET_PLUGIN_ABI,
                 ": build the plugin again with the headers and the compiler of this linnet"));
  refused({plugin("empty")}, "registers no mechanism; call register_mechanism");
  refused({plugin("unresolved")}, "undefined symbol");
  refused({"none.so"}, "there is no file none.so");
  refused({"text"}, "there is no file text");
  refused({"tiny.yaml"}, "expected a shared library that was built against this linnet");
  refused({join_path(parent_path(test::program()), "liblinnet.so")},
          "is no plugin of linnet: it exports no linnet_plugin_abi");
  write_file(folder_ / "copy.so", read_file(fading_));
  refused(
      {fading_, "copy.so"},
      "the plugin copy.so was refused: attention mechanism 'fading_linear' is registered twice");
}

TEST_F(PluginCli, ALibraryGivenTwiceIsLoadedOnce) {
  std::filesystem::create_symlink(fading_, folder_ / "link.so");
  const Outcome listed = linnet({"attention", "list", "--json", "--plugin", fading_, "--plugin",
                                 fading_, "--plugin", "link.so"});
  ASSERT_EQ(listed.code, 0) << listed.err;
  EXPECT_EQ(listed.err, "");
  const JsonValue list = parse_json(listed.out, "stdout");
  const auto& mechanisms = list.at("mechanisms").elements();
  EXPECT_EQ(std::count_if(mechanisms.begin(), mechanisms.end(),
                          [](const JsonValue& mechanism) {
                            return mechanism.at("name").text() == "fading_linear";
                          }),
            1);
}

}  // namespace
}  // namespace linnet
