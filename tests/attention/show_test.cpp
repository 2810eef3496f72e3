// `linnet attention show`: options, parameters, draws, choices and states of every mechanism.
#include "attention/explain.h"

#include <gtest/gtest.h>

#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

TEST(AttentionShow, ListsParametersStateAndOptionsOfEveryMechanism) {
  // Maps of width E x E at least, of mechanisms with their own, and of mechanisms that lack
  // projections or use one twice.
  const std::map<std::string, int64_t> own_maps{
      {"flash", 3}, {"flash_quad", 3}, {"luna", 3}, {"s4d", 1}};
  const std::map<std::string, int64_t> fewer{{"reformer", 3}, {"synthesizer", 2}};
  for (const Mechanism& mechanism : mechanisms()) {
    const JsonValue shown = explain_mechanism(mechanism, ConfigNode::map());
    EXPECT_EQ(shown.at("options").size(), mechanism.schema().fields.size());
    for (const JsonValue& form : shown.at("forms").elements()) {
      // Mechanisms between projections begin with them; others have maps of their own.
      int64_t projections = 0;
      for (const JsonValue& parameter : form.at("parameters").elements()) {
        for (const char* name : {"q.weight", "k.weight", "v.weight", "out.weight"}) {
          projections += parameter.at("name").text() == name ? 1 : 0;
        }
      }
      const auto own = own_maps.find(mechanism.name);
      const bool projected = own == own_maps.end();
      if (projected) {
        const bool source_only = mechanism.name == "lavo" && form.at("form").text() == "cross";
        const auto lacking = fewer.find(mechanism.name);
        const int64_t usual = lacking == fewer.end() ? 4 : lacking->second;
        EXPECT_EQ(projections, source_only ? 2 : usual) << mechanism.name;
      }
      const bool carries = form.at("form").text() == "cross" ||
                           (form.at("form").text() == "causal" && mechanism.traits.decode_state);
      EXPECT_EQ(form.at("state").size() > 0, carries) << mechanism.name;
      EXPECT_GT(form.at("cost").at("mixing_per_token").number(), 0);
      // The projections of width 256; the maps of other mechanisms are not less.
      EXPECT_GE(form.at("cost").at("projections_per_token").number(),
                static_cast<double>(projected ? projections : own->second) * 256 * 256);
    }
    const std::string text = format_explanation(shown);
    EXPECT_NE(text.find(mechanism.sources), std::string::npos);
    EXPECT_NE(text.find("cost per token at T = 1024  multiply-adds: "), std::string::npos);
  }
}

TEST(AttentionShow, ShowsDrawsChoicesAndStatesOfAnyLength) {
  const auto shapes = [](const char* name, const char* group, const ConfigNode& config,
                         std::optional<int64_t> tokens) {
    const JsonValue shown = explain_mechanism(find_mechanism(name), config, tokens);
    std::string text = concat(shown.at("tokens").integer(), ":");
    for (const JsonValue& item : shown.at("forms").elements()[1].at(group).elements()) {
      text += concat(" ", item.at("name").text(), item.at("shape").dump());
    }
    return text;
  };
  const ConfigNode plain = ConfigNode::map();
  EXPECT_EQ(shapes("abc_random", "draws", plain, {}), "32: token_slots[1, 32, 4]");
  EXPECT_EQ(shapes("abc_random", "draws", plain, 5), "5: token_slots[1, 5, 4]");
  EXPECT_EQ(shapes("softmax", "state", plain, 1), "1: k[1, 1, 4, 64] v[1, 1, 4, 64] valid[1, 1]");
  // Two windows of 128, and of what the config says, within the length.
  EXPECT_EQ(shapes("eva", "state", plain, {}).substr(0, 4), "256:");
  const ConfigNode wide = parse_yaml("{window: 64, chunk: 16, max_length: 100}", "config");
  EXPECT_EQ(shapes("eva", "state", wide, {}).substr(0, 4), "100:");
  EXPECT_EQ(test::causes_of<UsageError>(
                [&] { explain_mechanism(find_mechanism("softmax"), plain, 1025); }),
            "out_of_range --tokens");
  // The length of a mechanism with an option for it is both.
  const ConfigNode length = parse_yaml("{max_length: 50}", "config");
  const JsonValue shown = explain_mechanism(find_mechanism("cosformer"), length);
  EXPECT_EQ(shown.at("forms").elements()[0].at("cost").at("length").integer(), 50);
  for (const JsonValue& option : shown.at("options").elements()) {
    if (option.at("name").text() != "max_length") continue;
    EXPECT_EQ(option.at("value").text(), "50");
  }
}

TEST(AttentionShow, ListsDraws) {
  ConfigNode config = ConfigNode::map();
  config.set("basis_train", ConfigNode::scalar("frozen"));
  const JsonValue shown = explain_mechanism(find_mechanism("lavo"), config);
  const JsonValue& draws = shown.at("forms").elements()[0].at("draws");
  ASSERT_EQ(draws.size(), 1u);
  EXPECT_EQ(draws.elements()[0].at("name").text(), "basis");
  EXPECT_EQ(draws.elements()[0].at("shape").size(), 3u);
  EXPECT_NE(format_explanation(shown).find("draws  basis[4, 64, 64]"), std::string::npos);
}

}  // namespace
}  // namespace linnet
