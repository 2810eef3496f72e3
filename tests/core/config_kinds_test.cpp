// Sections whose keys depend on their kind: reading, refusing, writing back, describing.
#include <gtest/gtest.h>

#include "core/config.h"
#include "core/yaml.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

// What two kinds share.
struct Ink {
  int64_t colours = 1;
  static void describe(ConfigDescription<Ink>& d) {
    d.field("colours", &Ink::colours, "colours of ink").range(1, 8);
  }
  void validate(const ConfigNode& at) const {
    if (colours == 7) throw located_error(at.location_of("colours"), "nobody mixes seven");
  }
};

struct Sheet {
  double margin = 0.5;
  static void describe(ConfigDescription<Sheet>& d) {
    d.field("margin", &Sheet::margin, "white edge").above(0);
  }
};

struct Poster : Ink, Sheet {
  static void describe(ConfigDescription<Poster>& d) {
    d.group<Ink>();
    d.group<Sheet>();
  }
};

struct Book : Ink {
  std::vector<std::string> chapters;
  Sheet sheet;
  static void describe(ConfigDescription<Book>& d) {
    d.list("chapters", &Book::chapters, "their titles");
    d.nested("sheet", &Book::sheet, "of each page");
    d.group<Ink>();
  }
};

struct Card {
  std::string greeting;
  std::string colours = "gay";
  static void describe(ConfigDescription<Card>& d) {
    d.field("greeting", &Card::greeting, "what it says").required();
    d.field("colours", &Card::colours, "in words");
  }
};

std::vector<SectionKind> kinds_of_print() {
  return {{"poster", KindOptions(Poster())},
          {"book", KindOptions(Book())},
          {"card", KindOptions(Card())},
          {"blank", KindOptions()}};
}

struct Print {
  std::string kind = "poster";
  int64_t copies = 1;
  KindOptions options = KindOptions(Poster());
  static void describe(ConfigDescription<Print>& d) {
    d.kinds("kind", &Print::kind, &Print::options, kinds_of_print(), "what is printed");
    d.field("copies", &Print::copies, "how many").at_least(1);
  }
  void validate(const ConfigNode& at) const {
    if (copies == 13) throw located_error(at.location_of("copies"), "not thirteen");
  }
};

struct Order {
  Print print;
  static void describe(ConfigDescription<Order>& d) {
    d.nested("print", &Order::print, "the work");
  }
};

Print read(const std::string& yaml) {
  return parse_config<Print>(parse_yaml(yaml, "p.yaml"));
}

std::string refusal(const std::string& yaml) {
  return test::causes_of<UsageError>([&] { read(yaml); });
}

std::string message(const std::string& yaml) {
  try {
    read(yaml);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ConfigKinds, TheKindSaysWhichKeysASectionHas) {
  const Print book = read("{kind: book, chapters: [one, two], colours: 2, copies: 5}");
  EXPECT_EQ(book.copies, 5);
  EXPECT_EQ(book.options.as<Book>().chapters.size(), 2u);
  EXPECT_EQ(book.options.as<Ink>().colours, 2);
  EXPECT_EQ(book.options.find<Poster>(), nullptr);
  EXPECT_EQ(test::causes_of([&] { book.options.as<Poster>(); }), "general");
  EXPECT_EQ(read("{margin: 2}").options.as<Poster>().margin, 2);
  EXPECT_EQ(read("{kind: blank}").options.find<Ink>(), nullptr);
  EXPECT_EQ(refusal("{kind: card}"), "missing_key greeting at p.yaml:1:1");
}

TEST(ConfigKinds, ACopyHasOptionsOfItsOwn) {
  Print one = read("{colours: 2}");
  Print other = one;
  other.options.as<Ink>().colours = 3;
  EXPECT_EQ(one.options.as<Ink>().colours, 2);
  one = other;
  EXPECT_EQ(one.options.as<Poster>().colours, 3);
}

TEST(ConfigKinds, AResolvedSectionReadsBackToItself) {
  for (const char* yaml : {"{}", "{kind: book, chapters: [a], sheet: {margin: 3}}",
                           "{kind: card, greeting: hello}", "{kind: blank, copies: 2}"}) {
    const ConfigNode resolved = to_config_node(read(yaml));
    EXPECT_EQ(to_config_node(parse_config<Print>(resolved)), resolved) << yaml;
  }
  using Keys = std::vector<std::string>;
  EXPECT_EQ(to_config_node(read("{}")).keys(), (Keys{"kind", "copies", "colours", "margin"}));
  EXPECT_EQ(to_config_node(read("{kind: blank}")).keys(), (Keys{"kind", "copies"}));
}

TEST(ConfigKinds, UnknownKeysAreComparedWithThoseOfTheKind) {
  EXPECT_EQ(refusal("{kind: book, chaptres: []}"), "unknown_key chaptres at p.yaml:1:14");
  EXPECT_TRUE(message("{kind: book, chaptres: []}").ends_with("did you mean 'chapters'?"));
  EXPECT_TRUE(message("{kind: blank, xyz: 1}").ends_with("expected one of kind, copies"))
      << message("{kind: blank, xyz: 1}");
  EXPECT_TRUE(message("{kind: bok}").ends_with("did you mean 'book'?"));
}

TEST(ConfigKinds, AKeyOfAnotherKindIsRefusedByName) {
  EXPECT_EQ(refusal("{chapters: [a]}"), "conflict chapters at p.yaml:1:12");
  EXPECT_EQ(message("{chapters: [a]}"),
            "p.yaml:1:12: 'chapters' belongs to kind book, not to poster; remove it, or change "
            "'kind'");
  EXPECT_EQ(refusal("{kind: blank, colours: 3}"), "conflict colours at p.yaml:1:24");
  EXPECT_NE(message("{kind: blank, colours: 3}").find("kinds poster, book and card"),
            std::string::npos);
  // Of the wrong type, it is still of the other kind.
  EXPECT_EQ(refusal("{chapters: {a: 1}}"), "conflict chapters at p.yaml:1:12");
  EXPECT_EQ(refusal("{greeting: ''}"), "conflict greeting at p.yaml:1:12");
  EXPECT_EQ(test::causes_of<UsageError>(
                [] { parse_config<Order>(parse_yaml("print: {sheet: {margin: 2}}", "p.yaml")); }),
            "conflict print.sheet at p.yaml:1:16");
  // A misspelt kind is one problem.
  EXPECT_EQ(refusal("{kind: bok, chapters: [a], margin: 1}"), "unknown_name kind at p.yaml:1:8");
  EXPECT_EQ(refusal("{kind: [book], chapters: [a]}"), "wrong_type kind at p.yaml:1:8");
}

TEST(ConfigKinds, AKeyOfAnotherKindMayHoldItsDefault) {
  const Print blank =
      read("{kind: blank, colours: 1, margin: 0.5, chapters: [], sheet: {margin: 0.50}}");
  EXPECT_EQ(to_config_node(blank), to_config_node(read("{kind: blank}")));
  EXPECT_EQ(refusal("{kind: blank, colours: gay}"), "nothing thrown");
  EXPECT_EQ(refusal("{kind: blank, sheet: {margn: 0.5}}"), "conflict sheet at p.yaml:1:22");
}

TEST(ConfigKinds, ChecksOfTheKindComeBeforeThoseOfTheSection) {
  EXPECT_EQ(refusal("{kind: book, colours: 7}"), "conflict colours at p.yaml:1:23");
  EXPECT_EQ(refusal("{colours: 7}"), "conflict colours at p.yaml:1:11");
  EXPECT_EQ(refusal("{copies: 13, colours: 7}"), "conflict colours at p.yaml:1:23");
  EXPECT_EQ(refusal("{copies: 13}"), "conflict copies at p.yaml:1:10");
  EXPECT_EQ(refusal("{colours: 9}"), "out_of_range colours at p.yaml:1:11");
}

TEST(ConfigKinds, TheSchemaSaysWhichKindsHaveAKey) {
  const ConfigSchema schema = schema_of<Print>();
  std::vector<std::string> names;
  for (const FieldSchema& field : schema.fields) names.push_back(field.name);
  EXPECT_EQ(names, (std::vector<std::string>{"kind", "copies", "colours", "margin", "chapters",
                                             "sheet", "greeting", "colours"}));
  EXPECT_EQ(schema.find("kind")->choices,
            (std::vector<std::string>{"poster", "book", "card", "blank"}));
  EXPECT_TRUE(schema.find("copies")->kinds.empty());
  EXPECT_EQ(schema.find("colours")->kinds, (std::vector<std::string>{"poster", "book"}));
  EXPECT_EQ(schema.fields.back().kinds, std::vector<std::string>{"card"});
  const std::string table = format_schema(schema);
  EXPECT_NE(table.find("colours of ink (whole number, 1 to 8, kinds poster and book, default 1)"),
            std::string::npos)
      << table;
}

}  // namespace
}  // namespace linnet
