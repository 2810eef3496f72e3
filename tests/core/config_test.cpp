// Typed configuration: reading, refusing, writing back, describing.
#include "core/config.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

struct Tokenizer {
  std::string kind = "byte";
  std::optional<std::string> path;
  static void describe(ConfigDescription<Tokenizer>& d) {
    d.choice("kind", &Tokenizer::kind, {"byte", "word", "gpt2"}, "how text becomes tokens");
    d.optional("path", &Tokenizer::path, "folder of the vocabulary");
  }
  void validate(const ConfigNode& at) const {
    if (kind == "gpt2" && !path) throw located_error(at.location_of("kind"), "gpt2 needs 'path'");
  }
};

enum class Precision { kF32, kBf16 };

struct Sample {
  int64_t rank = 64;
  double scale = 0.5;
  bool bias = true;
  std::string window = "centred";
  Precision precision = Precision::kF32;
  Tokenizer tokenizer;
  std::vector<int64_t> contexts = {128, 256};
  std::vector<Tokenizer> more;
  std::optional<double> clip;
  ConfigNode attention;
  static void describe(ConfigDescription<Sample>& d) {
    d.field("rank", &Sample::rank, "rows of the basis").range(1, 4096).unit("rows").required();
    d.field("scale", &Sample::scale, "output scale").above(0).at_most(10);
    d.field("bias", &Sample::bias, "add a bias");
    d.field("window", &Sample::window, "window placement");
    d.choice("precision", &Sample::precision,
             {{"f32", Precision::kF32}, {"bf16", Precision::kBf16}}, "storage of activations");
    d.nested("tokenizer", &Sample::tokenizer, "text to tokens");
    d.list("contexts", &Sample::contexts, "lengths").at_least(1).size(1, 3);
    d.list("more", &Sample::more, "further tokenizers");
    d.optional("clip", &Sample::clip, "largest gradient norm").above(0);
    d.field("attention", &Sample::attention, "the mechanism");
  }
};

ConfigNode sample_node() {
  ConfigNode node = ConfigNode::map();
  node.set("rank", ConfigNode::integer(8));
  return node;
}

std::string refusal(const ConfigNode& node) {
  try {
    parse_config<Sample>(node);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Config, DefaultsAndValues) {
  ConfigNode node = sample_node();
  node.set("scale", ConfigNode::scalar("2.5e-1"));
  node.set("precision", ConfigNode::scalar("bf16"));
  const Sample sample = parse_config<Sample>(node);
  EXPECT_EQ(sample.rank, 8);
  EXPECT_EQ(sample.scale, 0.25);
  EXPECT_EQ(sample.precision, Precision::kBf16);
  EXPECT_TRUE(sample.bias);
  EXPECT_EQ(sample.contexts, (std::vector<int64_t>{128, 256}));
}

TEST(Config, ResolvedNodeReadsBackToItself) {
  ConfigNode node = sample_node();
  node.set("clip", ConfigNode::number(0.1));
  const ConfigNode resolved = to_config_node(parse_config<Sample>(node));
  EXPECT_EQ(resolved.keys().size(), 10u);
  EXPECT_EQ(to_config_node(parse_config<Sample>(resolved)), resolved);
  EXPECT_EQ(resolved.find("scale")->raw(), "0.5");
}

TEST(Config, RefusalsNameTheReasonAndTheNearestKey) {
  ConfigNode node = sample_node();
  node.set("rnak", ConfigNode::integer(3));
  EXPECT_NE(refusal(node).find("unknown key 'rnak'"), std::string::npos);

  node = ConfigNode::map();
  EXPECT_NE(refusal(node).find("the key 'rank' is missing"), std::string::npos);
  node.set("rakn", ConfigNode::integer(3));
  EXPECT_EQ(refusal(node), "(built in): unknown key 'rakn'; did you mean 'rank'?");

  node = ConfigNode::map();
  node.set("rank", ConfigNode::integer(0));
  EXPECT_EQ(refusal(node), "(built in): 'rank' must be 1 to 4096, found 0");

  node = sample_node();
  node.set("scale", ConfigNode::integer(0));
  EXPECT_EQ(refusal(node), "(built in): 'scale' must be above 0 and at most 10, found 0");

  node = sample_node();
  node.set("precision", ConfigNode::text("bf61"));
  EXPECT_EQ(refusal(node), "(built in): 'precision' cannot be 'bf61'; did you mean 'bf16'?");

  node = sample_node();
  node.set("contexts", ConfigNode::integer(5));
  EXPECT_EQ(refusal(node), "(built in): 'contexts' must be a list such as [1, 2], found '5'");

  node = sample_node();
  node.set("contexts", ConfigNode::sequence());
  EXPECT_EQ(refusal(node), "(built in): 'contexts' must have 1 to 3 elements, found 0");

  node = sample_node();
  node.set("bias", ConfigNode::scalar("yes"));
  EXPECT_EQ(refusal(node), "(built in): 'bias' must be true or false, found 'yes' (write true)");

  node = sample_node();
  node.set("scale", ConfigNode::scalar("1.5", true));
  EXPECT_EQ(refusal(node),
            "(built in): 'scale' must be a number, found the text \"1.5\" (write it without "
            "quotes)");

  node = sample_node();
  node.set("tokenizer", ConfigNode::integer(1));
  EXPECT_NE(refusal(node).find("'tokenizer' must be a section"), std::string::npos);
}

TEST(Config, NestedErrorsNameTheirSection) {
  ConfigNode tokenizer = ConfigNode::map();
  tokenizer.set("knid", ConfigNode::text("byte"));
  ConfigNode node = sample_node();
  node.set("tokenizer", tokenizer);
  EXPECT_EQ(refusal(node), "(built in): unknown key 'knid' in 'tokenizer'; did you mean 'kind'?");
}

TEST(Config, ValidateHookSeesTheNode) {
  ConfigNode tokenizer = ConfigNode::map();
  ConfigNode kind = ConfigNode::text("gpt2");
  kind.set_location({std::make_shared<const std::string>("r.yaml"), 4, 9});
  tokenizer.set("kind", kind);
  ConfigNode node = sample_node();
  node.set("more", ConfigNode::sequence({tokenizer}));
  EXPECT_EQ(refusal(node), "r.yaml:4:9: gpt2 needs 'path'");
}

TEST(Config, AllProblemsAreReportedTogether) {
  ConfigNode node = ConfigNode::map();
  node.set("rank", ConfigNode::text("many"));
  node.set("scale", ConfigNode::integer(-1));
  node.set("windwo", ConfigNode::text("x"));
  const std::string text = refusal(node);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(Config, SchemaListsEveryField) {
  const ConfigSchema schema = schema_of<Sample>();
  ASSERT_EQ(schema.fields.size(), 10u);
  EXPECT_EQ(schema.fields[0].range, "1 to 4096");
  EXPECT_EQ(schema.fields[0].unit, "rows");
  EXPECT_TRUE(schema.fields[0].required);
  EXPECT_EQ(schema.fields[4].choices, (std::vector<std::string>{"f32", "bf16"}));
  EXPECT_EQ(schema.fields[4].default_text, "f32");
  EXPECT_EQ(schema.fields[5].fields.size(), 2u);
  EXPECT_EQ(schema.fields[6].type, "list of whole number");
  EXPECT_EQ(schema.fields[6].default_text, "[128, 256]");
  const std::string table = format_schema(schema);
  EXPECT_NE(table.find("rank       rows of the basis (whole number, rows, 1 to 4096, required)"),
            std::string::npos)
      << table;
}

TEST(Config, ReadKindShowsTheSectionThatAValueAloneStandsFor) {
  const auto message = [](const ConfigNode& node) -> std::string {
    try {
      read_kind(node, "name", {"softmax", "lavo"});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message(ConfigNode::text("lavo")),
            "(built in): expected a section such as {name: lavo}, found 'lavo'");
  EXPECT_EQ(message(ConfigNode::text("lvao")),
            "(built in): expected a section such as {name: ...}, found 'lvao'");
  EXPECT_EQ(message(ConfigNode::sequence({})),
            "(built in): expected a section such as {name: ...}, found a list");
}

TEST(Config, ReadKindRefusesMisspeltKeysAndValues) {
  ConfigNode node = ConfigNode::map();
  node.set("nmae", ConfigNode::text("lavo"));
  EXPECT_THROW(read_kind(node, "name", {"lavo"}), UsageError);
  node = ConfigNode::map();
  node.set("name", ConfigNode::text("lvao"));
  try {
    read_kind(node, "name", {"softmax", "lavo"});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "(built in): 'name' cannot be 'lvao'; did you mean 'lavo'?");
  }
}

}  // namespace
}  // namespace linnet
