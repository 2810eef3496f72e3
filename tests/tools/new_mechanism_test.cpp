// `linnet attention new`: what it writes. tests/plugin/fading_linear.cpp is the plugin that it
// writes under that name: other tests build, check and train it, and the installed program does the
// same with one of its own (tests/plugin/install_test.cmake).
#include <sstream>

#include "attention/explain.h"
#include "attention/plugin_loader.h"
#include "tests/data_path.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class NewMechanism : public test::Cli {
 protected:
  static std::string source(const std::string& path) {
    return read_file(join_path(test::source_dir(), path));
  }
  // The part of a source from its first constant to the last function before the entry.
  static std::string body(const std::string& code) {
    const size_t begin = code.find("\nconstexpr double kFloor"), end = code.find("// 5. The entry");
    return code.substr(begin, code.rfind(";\n}\n", end) - begin);
  }
};

TEST_F(NewMechanism, IsTheExampleAsAPlugin) {
  const Outcome written = linnet({"attention", "new", "fading_linear", "--plugin", "mine/fading"});
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_THAT(written.out, AllOf(HasSubstr("wrote mine/fading/CMakeLists.txt\n"),
                                 HasSubstr("--plugin build/libfading_linear.so")));
  EXPECT_EQ(read_file(folder_ / "mine/fading/fading_linear.cpp"),
            source("tests/plugin/fading_linear.cpp"))
      << "tests/plugin/fading_linear.cpp is what linnet attention new fading_linear --plugin "
         "writes";
  for (const char* file : {"CMakeLists.txt", "README.md", "fading_linear.yaml"}) {
    EXPECT_THAT(read_file(folder_ / concat("mine/fading/", file)),
                AllOf(HasSubstr("fading_linear"), Not(HasSubstr("$NAME"))))
        << file;
  }
  expect_error({"attention", "new", "fading_linear", "--plugin", "mine/fading"}, 2,
               "exists already, and nothing is overwritten");
}

// The tutorial shows the definition, mix() and mix_cost() as they are written.
TEST_F(NewMechanism, TakesNoWordThatYamlReadsAsAValue) {
  const Outcome refused = linnet({"attention", "new", "null", "--plugin", "own"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'null' is a value in YAML"));
}

TEST_F(NewMechanism, IsShownInTheTutorial) {
  const std::string code = source("tests/plugin/fading_linear.cpp"),
                    readme = source("attention/README.md");
  const auto shown = [&](const std::string& from, const std::string& to) {
    const size_t begin = code.find(from);
    std::istringstream lines(code.substr(begin, code.find(to, begin) - begin));
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      text += (line.empty() ? "" : "    ") + line + "\n";
    }
    while (text.ends_with("\n\n")) text.pop_back();
    EXPECT_NE(readme.find(text), std::string::npos) << "attention/README.md lacks\n" << text;
  };
  shown("template <typename Number>", "// 4. A limiting case");
  shown("  MixResult mix(", "  // The multiply-adds of mix()");
  shown("  MixerCost mix_cost(", " private:");
}

// The code of a checkout differs in its frame alone, and its lists get the lines that tests want.
TEST_F(NewMechanism, EntersTheListsOfACheckout) {
  const std::vector<std::string> lists = {"attention/registry.cpp", "attention/README.md",
                                          "recipes/quickstart/compare.yaml"};
  for (const std::string& list : lists) folder_.write(list, source(list));
  const Outcome written = linnet({"attention", "new", "fading_linear"});
  ASSERT_EQ(written.code, 0) << written.err;
  const std::string code = read_file(folder_ / "attention/fading_linear/fading_linear.cpp");
  EXPECT_EQ(body(code), body(source("tests/plugin/fading_linear.cpp")));
  EXPECT_THAT(code, HasSubstr("\n#include \"attention/fading_linear/fading_linear.h\"\n"));
  EXPECT_THAT(read_file(folder_ / "attention/fading_linear/fading_linear.h"),
              HasSubstr("Mechanism fading_linear_mechanism();"));
  const auto added = [&](const std::string& list) {
    std::string lines, text = read_file(folder_ / list);
    std::istringstream before(source(list)), after(text);
    std::string old;
    std::getline(before, old);
    for (std::string line; std::getline(after, line);) {
      if (line == old) {
        std::getline(before, old);
      } else {
        lines += line + "\n";
      }
    }
    return lines;
  };
  EXPECT_EQ(added(lists[0]),
            "#include \"attention/fading_linear/fading_linear.h\"\n"
            "    add_to(result, fading_linear_mechanism());\n");
  EXPECT_EQ(added(lists[2]), "    - {name: fading_linear}\n");
  // The row is the one of the mechanism when it is registered.
  ASSERT_TRUE(exists(join_path(parent_path(test::program()), "plugin/libfading_linear.so")));
  load_plugin(join_path(parent_path(test::program()), "plugin/libfading_linear.so"));
  const std::string rows = added(lists[1]), row = rows.substr(0, rows.find('\n') + 1);
  EXPECT_TRUE(mechanism_table().ends_with(row)) << row;
  EXPECT_THAT(rows.substr(row.size()),
              testing::StartsWith("| [fading_linear](fading_linear/README"));
  expect_error({"attention", "new", "fading_linear"}, 2, "exists already");
}

}  // namespace
}  // namespace linnet
