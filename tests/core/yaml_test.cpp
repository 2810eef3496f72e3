// YAML: places, the strict subset, round trips, hostile input.
#include "core/yaml.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <random>

#include "tests/error_helpers.h"
#include "tests/peak_memory.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

std::string refusal(const std::string& text) {
  return test::causes_of<UsageError>([&] { parse_yaml(text, "r.yaml"); });
}

std::string repeat(const std::string& piece, size_t bytes) {
  std::string text;
  while (text.size() + piece.size() <= bytes) text += piece;
  return text;
}

TEST(Yaml, PlacesOfKeysAndValues) {
  const ConfigNode root = parse_yaml(
      "seed: 1\n"
      "model:\n"
      "  attention: {name: lavo, rank: 64}\n"
      "  t\xC3\xA9t\xC3\xA9: [1, \"x\"]\n",
      "r.yaml");
  const ConfigNode& model = *root.find("model");
  EXPECT_EQ(root.find("seed")->location().text(), "r.yaml:1:7");
  EXPECT_EQ(root.entries()[1].key_location.text(), "r.yaml:2:1");
  EXPECT_EQ(model.find("attention")->find("rank")->location().text(), "r.yaml:3:33");
  EXPECT_EQ(model.find("attention")->entries()[1].key_location.text(), "r.yaml:3:27");
  // Columns count characters.
  EXPECT_EQ(model.entries()[1].value.items()[1].location().text(), "r.yaml:4:13");
  EXPECT_TRUE(model.entries()[1].value.items()[1].quoted());
  EXPECT_FALSE(model.entries()[1].value.items()[0].quoted());
}

TEST(Yaml, EmptyTextIsNull) {
  EXPECT_TRUE(parse_yaml("", "r").is_null());
  EXPECT_TRUE(parse_yaml("# only a comment\n", "r").is_null());
  EXPECT_TRUE(parse_yaml("a:\n", "r").find("a")->is_null());
  EXPECT_TRUE(parse_yaml("--- # start\na: 1\n", "r").contains("a"));
  EXPECT_TRUE(parse_yaml("\xEF\xBB\xBF"
                         "a: 1\r\nb: 2\r\n",
                         "r")
                  .contains("b"));
}

TEST(Yaml, RefusesWhatRecipesDoWithout) {
  const std::pair<const char*, const char*> refused[] = {
      {"a: 1\nb: 2\na: 3\n", "repeated a at r.yaml:3:1"},
      {"a: {x: 1, x: 2}\n", "repeated x at r.yaml:1:11"},
      {"a: &x 1\n", "malformed at r.yaml:1:4"},
      {"a: &x {b: 1}\n", "malformed at r.yaml:1:4"},
      {"a: *x\n", "malformed at r.yaml:1:4"},
      {"a: !!int 1\n", "malformed at r.yaml:1:4"},
      {"a: ! 1\n", "malformed at r.yaml:1:4"},
      {"a: !!map {}\n", "malformed at r.yaml:1:4"},
      {"a: ! {}\n", "malformed at r.yaml:1:4"},
      {"<<: {a: 1}\n", "malformed at r.yaml:1:1"},
      {"a: 1\n---\nb: 2\n", "malformed at r.yaml:2:1"},
      {"a: 1\n...\n", "malformed at r.yaml:2:1"},
      {"{a: 1}\nb: 2\n", "malformed at r.yaml:2:1"},
      {"%YAML 1.2\n---\na: 1\n", "malformed at r.yaml:1:1"},
      {"a:\n\tb: 1\n", "malformed at r.yaml:2:1"},
      {"a:\n  b: 1\n \tc: 1\n", "malformed at r.yaml:3:2"},
      {"[a]: 1\n", "malformed at r.yaml:1:1"},
      {"? {a: 1}\n: 1\n", "malformed at r.yaml:1:3"},
      {": 1\n", "malformed at r.yaml:1:1"},
      {"\"\": 1\n", "malformed at r.yaml:1:1"},
      {"a: [1, 2\n", "malformed at r.yaml:2:1"},
      {"a: 1\n b: 2\n", "malformed at r.yaml:2:3"},
      {"a: \"\\q\"\n", "malformed at r.yaml:1:7"},
      {"a: b: c\n", "malformed at r.yaml:1:5"},
      {"a: \"x\\_\"\n", "malformed at r.yaml:1:4"},
      {"\"x\\N\": 1\n", "malformed at r.yaml:1:1"},
      {"a: \"\\0\"\n", "malformed at r.yaml:1:4"},
      {"a: \"x\n", "malformed at r.yaml:1:4"},
      {"a: 'it''s\n ", "malformed at r.yaml:1:4"},
      {"a: \"x\\\"\n", "malformed at r.yaml:1:4"},
  };
  for (const auto& [text, expected] : refused) EXPECT_EQ(refusal(text), expected) << text;
  EXPECT_EQ(refusal(std::string("a: \0b\n", 6)), "malformed at r.yaml:1:4");
  EXPECT_EQ(refusal("x: 1\na: \x1B[31m\n"), "malformed at r.yaml:2:4");
  for (const char* text : {"a: \xFF\n", "a: \xC0\x80\n", "a: \xED\xA0\x80\n", "a: \xE2\x82\n",
                           "a: \xF5\x80\x80\x80\n", "a: \x80\n"}) {
    EXPECT_EQ(refusal(text), "malformed at r.yaml:1:4") << text;
  }
  // Beyond limits.
  EXPECT_EQ(refusal("a: 1\n" + repeat("b", YamlLimits::kLineBytes + 1)),
            "out_of_range at r.yaml:2:1");
  EXPECT_EQ(refusal(repeat("#\n", YamlLimits::kFileBytes + 2)), "out_of_range at r.yaml");
  EXPECT_EQ(refusal("a:\n  " + repeat("- ", 2 * YamlLimits::kDepth) + "1\n"),
            "out_of_range at r.yaml:2:129");
}

// Most refusals above are of the one code: the sentence says which it is.
TEST(Yaml, SentencesNameWhatRecipesDoWithout) {
  const std::pair<const char*, const char*> refused[] = {
      {"a: 1\nb: 2\na: 3\n", "r.yaml:3:1: duplicate key 'a', first given at 1:1"},
      {"a: &x 1\n", "r.yaml:1:4: YAML anchors (&name) are not accepted; remove it"},
      {"a: *x\n", "r.yaml:1:4: YAML aliases (*name) are not accepted; write the value out"},
      {"a: !!int 1\n", "r.yaml:1:4: YAML tags (!name) are not accepted; remove it"},
      {"<<: {a: 1}\n", "r.yaml:1:1: merge keys (<<) are not accepted; use extends:"},
      {"a: 1\n---\nb: 2\n", "r.yaml:2:1: a second document; a recipe file holds one"},
      {"a:\n\tb: 1\n", "r.yaml:2:1: a tab in the indentation; use spaces"},
      {"[a]: 1\n", "r.yaml:1:1: a key must be text, not a list or section"},
      {"a: \"\\0\"\n", "r.yaml:1:4: a NUL character is not accepted"},
      {"a: \"x\n", "r.yaml:1:4: this quote is never closed"},
      {"a: \xFF\n", "r.yaml:1:4: not valid UTF-8; save the file as UTF-8"},
      {"a: \x1B[31m\n", "r.yaml:1:4: control character 27 is not accepted in text"},
      {"\"\": 1\n", "r.yaml:1:1: a key cannot be empty"},
      {": 1\n", "r.yaml:1:1: a key is missing before ':'"},
      {"%YAML 1.2\n---\na: 1\n", "r.yaml:1:1: YAML directives (%) are not accepted"},
      {"{a: 1}\nb: 2\n", "r.yaml:2:1: text after the end of the document; a recipe is one map"},
      {"a: \"x\\_\"\n", "r.yaml:1:4: an escape in this text is not valid UTF-8"},
  };
  for (const auto& [text, expected] : refused) {
    EXPECT_EQ(test::message_of<UsageError>([&text = text] { parse_yaml(text, "r.yaml"); }),
              expected);
  }
}

// CPU time and peak memory of parsing `text` in a process of its own; the error comes back too.
struct Cost {
  double ms = 0;
  double mib = 0;
  std::string error;
};

Cost cost_of(const std::string& text) {
  int pipe_ends[2];
  EXPECT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    long pages = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    const double before =
        static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
    const clock_t start = std::clock();
    std::string error;
    int status = 0;
    try {
      parse_yaml(text, "r.yaml");
    } catch (const UsageError& refused) {
      error = refused.what();
    } catch (...) {
      status = 1;
    }
    const double ms = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double mib = (static_cast<double>(usage.ru_maxrss) * 1024 - before) / (1 << 20);
    dprintf(pipe_ends[1], "%f %f %.200s", ms, mib, error.c_str());
    _exit(status);
  }
  close(pipe_ends[1]);
  std::string answer;
  char buffer[512];
  for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the parser did not survive";
  Cost cost;
  int used = 0;
  EXPECT_EQ(std::sscanf(answer.c_str(), "%lf %lf %n", &cost.ms, &cost.mib, &used), 2);
  cost.error = answer.substr(static_cast<size_t>(used));
  return cost;
}

TEST(Yaml, HostileTextCostsLittle) {
  std::string alias_bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string previous = "*a" + std::to_string(i - 1);
    alias_bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + previous;
    for (int j = 0; j < 8; ++j) alias_bomb += ", " + previous;
    alias_bomb += "]\n";
  }
  std::string stairs, many_keys;
  for (int i = 0; i < 600; ++i) stairs += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  for (int i = 0; many_keys.size() < 250000; ++i) many_keys += "k" + std::to_string(i) + ": 1\n";
  const size_t file = YamlLimits::kFileBytes - 20, line = YamlLimits::kLineBytes - 20;
  const std::pair<const char*, std::string> hostile[] = {
      {"alias bomb", alias_bomb},
      {"flow nesting", std::string(line, '[')},
      {"flow nesting over lines", repeat("[\n", file)},
      {"flow maps", repeat("{a: ", line)},
      {"flow maps over lines", repeat("{a:\n", file)},
      {"nested sequences", repeat("- ", line)},
      {"nested keys", repeat("? ", line)},
      {"stairs", stairs},
      {"many keys", many_keys},
      {"many items", repeat("-\n", file)},
      {"flow items over lines", "a: [" + repeat("b,\n", file)},
      {"flow items under the limit", "a: [" + repeat("b,\n", 3 * 19000)},
      {"no flow separators", "{" + repeat("? a\n", file)},
      {"huge line", std::string(1 << 20, 'a')},
      {"huge file", repeat("a\n", 4 << 20)},
      {"long plain text", repeat("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", file) + "a: ["},
      {"long quoted text", "a: \"" + repeat("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n ", file)},
      {"long block text", "a: |\n" + repeat("  aaaaaaaaaaaaaaaaaaaaaaaaaa\n", file) + "b: ["},
      {"comments", repeat("# xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n", file) + "a: [\n"},
      {"blank lines", repeat("\n", file) + "a: [\n"},
      {"anchors", repeat("&a ", line)},
      {"tags", repeat("!", line)},
      {"colons", repeat(":", line)},
      {"quotes", repeat("'", line) + "'"},
      {"documents", repeat("---\n", file)},
      {"stray flow ends", repeat("]", line)},
      {"24 bytes", "- !!a\n- ? |\n  - [*a, {"},
  };
  // Costs that grow with the square of the text are seconds. Up to 115 ms of CPU time were seen on
  // a machine whose cores were shared; an idle one needs under 50.
  const double most_ms = test::kTimed ? 400 : 2000, most_mib = test::kTimed ? 64 : 2048;
  for (const auto& [name, text] : hostile) {
    const Cost cost = cost_of(text);
    EXPECT_FALSE(cost.error.empty()) << name << " was accepted";
    EXPECT_TRUE(cost.ms <= most_ms) << name << ": " << cost.ms << " ms";
    EXPECT_TRUE(cost.mib <= most_mib) << name << ": " << cost.mib << " MiB";
  }
}

TEST(Yaml, FilesThatCannotBeRead) {
  const auto refusal = [](const std::string& path) {
    return test::causes_of<UsageError>([&] { load_yaml(path); });
  };
  EXPECT_EQ(refusal("/nonexistent/recipe.yaml"), "not_found at /nonexistent/recipe.yaml");
  EXPECT_EQ(refusal("/tmp"), "wrong_type at /tmp");
  EXPECT_EQ(refusal(""), "not_found");
}

TEST(Yaml, WrittenForm) {
  ConfigNode root = ConfigNode::map();
  root.set("seed", ConfigNode::integer(1));
  root.set("empty", ConfigNode::map());
  root.set("nothing", ConfigNode());
  root.set("contexts", ConfigNode::sequence({ConfigNode::integer(8), ConfigNode::number(0.5)}));
  ConfigNode inner = ConfigNode::map();
  inner.set("name", ConfigNode::text("a: b"));
  inner.set("list", ConfigNode::sequence({ConfigNode::sequence({ConfigNode::text("no")}), inner}));
  root.set("model", inner);
  EXPECT_EQ(to_yaml(root),
            "seed: 1\n"
            "empty: {}\n"
            "nothing: null\n"
            "contexts: [8, 0.5]\n"
            "model:\n"
            "  name: \"a: b\"\n"
            "  list:\n"
            "    - [\"no\"]\n"
            "    -\n"
            "      name: \"a: b\"\n");
  EXPECT_EQ(parse_yaml(to_yaml(root), "r"), root);
  EXPECT_THROW(to_yaml(ConfigNode::text("\xFF")), Error);
}

// Random trees with awkward texts.
class TreeMaker {
 public:
  explicit TreeMaker(unsigned seed) : random_(seed) {}

  ConfigNode make(int depth) {
    const int kind = pick(depth > 0 ? 6 : 4);
    if (kind == 0) return ConfigNode();
    if (kind == 1)
      return ConfigNode::number(std::ldexp(static_cast<double>(pick(1000)), pick(60) - 30));
    if (kind <= 3) return ConfigNode::text(text());
    ConfigNode node = kind == 4 ? ConfigNode::sequence() : ConfigNode::map();
    for (int i = pick(5); i > 0; --i) {
      if (kind == 4) {
        node.append(make(depth - 1));
      } else {
        node.set(text() + std::to_string(i), make(depth - 1));
      }
    }
    return node;
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  std::string text() {
    static const char* const kPieces[] = {"a",
                                          "B",
                                          "0",
                                          "1",
                                          "e",
                                          ".",
                                          "-",
                                          "+",
                                          "_",
                                          "/",
                                          " ",
                                          "  ",
                                          ":",
                                          ": ",
                                          "#",
                                          " #",
                                          ",",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          "&",
                                          "*",
                                          "!",
                                          "|",
                                          ">",
                                          "'",
                                          "\"",
                                          "%",
                                          "@",
                                          "`",
                                          "\\",
                                          "\n",
                                          "\t",
                                          "\r",
                                          "\x01",
                                          "\x7F",
                                          "\xC3\xA9",
                                          "\xE2\x80\xA8",
                                          "\xEF\xBB\xBF",
                                          "\xC2\x85",
                                          "\xF0\x9F\x98\x80",
                                          "~",
                                          "null",
                                          "true",
                                          "---",
                                          "...",
                                          "<<",
                                          "=",
                                          "?",
                                          "? ",
                                          "- ",
                                          "\\n"};
    std::string text;
    for (int i = pick(6); i > 0; --i) text += kPieces[pick(std::size(kPieces))];
    return text;
  }

  std::mt19937 random_;
};

TEST(Yaml, WrittenTreesReadBackEqual) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    const ConfigNode tree = TreeMaker(seed).make(4);
    const std::string text = to_yaml(tree);
    ConfigNode read;
    ASSERT_NO_THROW(read = parse_yaml(text, "r")) << text;
    ASSERT_EQ(read, tree) << text;
    ASSERT_EQ(to_yaml(read), text);
  }
}

}  // namespace
}  // namespace linnet
