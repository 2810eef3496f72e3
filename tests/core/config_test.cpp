// Typed configuration: reading, refusing, writing back, describing.
#include "core/config.h"

#include <gtest/gtest.h>

#include "tests/error_helpers.h"
#include "tests/tensor_helpers.h"

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
  return test::causes_of<UsageError>([&] { parse_config<Sample>(node); });
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
  EXPECT_EQ(refusal(node), "unknown_key rnak at (built in)");

  node = ConfigNode::map();
  EXPECT_EQ(refusal(node), "missing_key rank at (built in)");
  node.set("rakn", ConfigNode::integer(3));
  // A key that was meant is not missing.
  EXPECT_EQ(refusal(node), "unknown_key rakn at (built in)");

  node = ConfigNode::map();
  node.set("rank", ConfigNode::integer(0));
  EXPECT_EQ(refusal(node), "out_of_range rank at (built in)");

  node = sample_node();
  node.set("scale", ConfigNode::integer(0));
  EXPECT_EQ(refusal(node), "out_of_range scale at (built in)");

  node = sample_node();
  node.set("precision", ConfigNode::text("bf61"));
  EXPECT_EQ(refusal(node), "unknown_name precision at (built in)");

  node = sample_node();
  node.set("contexts", ConfigNode::integer(5));
  EXPECT_EQ(refusal(node), "wrong_type contexts at (built in)");

  node = sample_node();
  node.set("contexts", ConfigNode::sequence());
  EXPECT_EQ(refusal(node), "out_of_range contexts at (built in)");

  node = sample_node();
  node.set("bias", ConfigNode::scalar("yes"));
  EXPECT_EQ(refusal(node), "wrong_type bias at (built in)");

  node = sample_node();
  node.set("scale", ConfigNode::scalar("1.5", true));
  EXPECT_EQ(refusal(node), "wrong_type scale at (built in)");

  node = sample_node();
  node.set("tokenizer", ConfigNode::integer(1));
  EXPECT_EQ(refusal(node), "wrong_type tokenizer at (built in)");
}

TEST(Config, NestedErrorsNameTheirSection) {
  ConfigNode tokenizer = ConfigNode::map();
  tokenizer.set("knid", ConfigNode::text("byte"));
  ConfigNode node = sample_node();
  node.set("tokenizer", tokenizer);
  EXPECT_EQ(refusal(node), "unknown_key tokenizer.knid at (built in)");
}

TEST(Config, ValidateHookSeesTheNode) {
  ConfigNode tokenizer = ConfigNode::map();
  ConfigNode kind = ConfigNode::text("gpt2");
  kind.set_location({std::make_shared<const std::string>("r.yaml"), 4, 9});
  tokenizer.set("kind", kind);
  ConfigNode node = sample_node();
  node.set("more", ConfigNode::sequence({tokenizer}));
  EXPECT_EQ(refusal(node), "conflict more.kind at r.yaml:4:9");
}

TEST(Config, AllProblemsAreReportedTogether) {
  ConfigNode node = ConfigNode::map();
  node.set("rank", ConfigNode::text("many"));
  node.set("scale", ConfigNode::integer(-1));
  node.set("windwo", ConfigNode::text("x"));
  EXPECT_EQ(refusal(node),
            "unknown_key windwo at (built in)\nwrong_type rank at (built in)\n"
            "out_of_range scale at (built in)");
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

TEST(Config, ReadKindRefusesAValueAlone) {
  for (const ConfigNode& node :
       {ConfigNode::text("lavo"), ConfigNode::text("lvao"), ConfigNode::sequence({})}) {
    EXPECT_EQ(test::causes_of<UsageError>([&] {
                read_kind(node, "name", {"softmax", "lavo"});
              }),
              "wrong_type at (built in)");
  }
}

TEST(Config, ReadKindRefusesMisspeltKeysAndValues) {
  const auto refusal = [](const ConfigNode& node) {
    return test::causes_of<UsageError>([&] { read_kind(node, "name", {"softmax", "lavo"}); });
  };
  ConfigNode node = ConfigNode::map();
  EXPECT_EQ(refusal(node), "missing_key name at (built in)");
  node.set("nmae", ConfigNode::text("lavo"));
  EXPECT_EQ(refusal(node), "unknown_key nmae at (built in)");
  node = ConfigNode::map();
  node.set("name", ConfigNode::text("lvao"));
  EXPECT_EQ(refusal(node), "unknown_name name at (built in)");
}

// The sentences that these tests do not look at: one of each form.
TEST(Config, SentencesSayWhatWasFoundAndWhatWasMeant) {
  const auto sentence = [](const char* key, ConfigNode value) {
    ConfigNode node = sample_node();
    node.set(key, std::move(value));
    return test::message_of<UsageError>([&] { parse_config<Sample>(node); });
  };
  EXPECT_EQ(sentence("rnak", ConfigNode()), "(built in): unknown key 'rnak'; did you mean 'rank'?");
  EXPECT_EQ(sentence("scale", ConfigNode::integer(0)),
            "(built in): 'scale' must be above 0 and at most 10, found 0");
  EXPECT_EQ(sentence("scale", ConfigNode::scalar("1.5", true)),
            "(built in): 'scale' must be a number, found the text \"1.5\" (write it without "
            "quotes)");
  EXPECT_EQ(sentence("precision", ConfigNode::text("bf61")),
            "(built in): 'precision' cannot be 'bf61'; did you mean 'bf16'?");
  EXPECT_EQ(sentence("contexts", ConfigNode::integer(5)),
            "(built in): 'contexts' must be a list such as [1, 2], found '5'");
  EXPECT_EQ(sentence("contexts", ConfigNode::sequence()),
            "(built in): 'contexts' must have 1 to 3 elements, found 0");
  EXPECT_EQ(sentence("bias", ConfigNode::scalar("yes")),
            "(built in): 'bias' must be true or false, found 'yes' (write true)");
  // A known name is put into the example, what is none is not.
  for (const auto& [node, said] :
       {std::pair(ConfigNode::text("lavo"), "{name: lavo}, found 'lavo'"),
        {ConfigNode::text("lvao"), "{name: ...}, found 'lvao'"},
        {ConfigNode::sequence({}), "{name: ...}, found a list"}}) {
    EXPECT_EQ(test::message_of<UsageError>([&, &node = node] {
                read_kind(node, "name", {"softmax", "lavo"});
              }),
              concat("(built in): expected a section such as ", said));
  }
}

// A message has 20 lines at most; the list of problems is complete.
TEST(Config, ErrorsListAllProblems) {
  ConfigNode node = sample_node();
  for (int i = 0; i < 25; ++i) node.set(concat("nobody", i), ConfigNode());
  try {
    parse_config<Sample>(node);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.problems().size(), 25u);
    EXPECT_EQ(error.problems()[24].key, "nobody24");
    EXPECT_EQ(error.key(), "nobody0");
    const std::string text = error.what(), first = error.problems()[0].text;
    EXPECT_EQ(text.substr(0, first.size() + 1), first + "\n");
    EXPECT_EQ(text.substr(text.rfind('\n') + 1), "and 5 more");
  }
}

}  // namespace
}  // namespace linnet
