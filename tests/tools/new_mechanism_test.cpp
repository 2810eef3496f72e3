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
  static std::string build_folder() { return parent_path(test::program()); }
  static std::string source(const std::string& path) {
    return read_file(join_path(test::source_dir(), path));
  }
  // The part of a source from its options to the last function before the entry.
  static std::string body(const std::string& code) {
    const size_t begin = code.find("\n// 1. Options"), end = code.find("// 5. The entry");
    return code.substr(begin, code.rfind(";\n}\n", end) - begin);
  }
};

TEST_F(NewMechanism, IsTheExampleAsAPlugin) {
  const Outcome written = linnet({"attention", "new", "fading_linear", "--plugin", "mine/fading"});
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_THAT(written.out, AllOf(HasSubstr("wrote mine/fading/CMakeLists.txt\n"),
                                 HasSubstr("--plugin build/libfading_linear.so"),
                                 HasSubstr(concat(" -Dlinnet_DIR=", build_folder(), " ")),
                                 HasSubstr(concat("\n  ", test::program(), " attention check")),
                                 Not(HasSubstr("PREFIX"))));
  EXPECT_EQ(read_file(folder_ / "mine/fading/fading_linear.cpp"),
            source("tests/plugin/fading_linear.cpp"))
      << "tests/plugin/fading_linear.cpp is what linnet attention new fading_linear --plugin "
         "writes";
  for (const char* file : {"CMakeLists.txt", "README.md", "fading_linear.yaml"}) {
    EXPECT_THAT(read_file(folder_ / concat("mine/fading/", file)),
                AllOf(HasSubstr("fading_linear"), Not(HasSubstr("$"))))
        << file;
  }
  expect_error({"attention", "new", "fading_linear", "--plugin", "mine/fading"}, 2,
               "exists already, and nothing is overwritten");
}

// A run trains on text that no build of the plugin changes, and begins as the command says.
TEST_F(NewMechanism, ItsRecipeTrainsOnFixedTextFromTheStart) {
  const Outcome written = linnet({"attention", "new", "fading_linear", "--plugin", "own"});
  ASSERT_EQ(written.code, 0) << written.err;
  const std::string recipe = folder_ / "own/fading_linear.yaml",
                    plugin = join_path(build_folder(), "plugin/libfading_linear.so"),
                    text = join_path(test::source_dir(), "core/*.h");
  const auto resolved = [&](const std::string& change) {
    const Outcome shown = linnet({"recipe", "show", recipe, change, "--plugin", plugin});
    EXPECT_EQ(shown.code, 0) << shown.err;
    return shown.out;
  };
  const std::string written_recipe = resolved("seed=1");
  EXPECT_THAT(written_recipe, AllOf(HasSubstr("  kind: byte\n"), HasSubstr("  context: 128\n")));
  // Other text changes nothing else.
  std::string own = resolved("data.path=mine");
  const size_t at = written_recipe.find(text);
  ASSERT_NE(at, std::string::npos) << written_recipe;
  const size_t line = written_recipe.rfind("path: ", at), end = written_recipe.find('\n', at);
  const size_t own_line = own.find("path: mine\n");
  ASSERT_NE(own_line, std::string::npos) << own;
  own.replace(own_line, 10, written_recipe.substr(line, end - line));
  EXPECT_EQ(own, written_recipe);
  const Outcome trained = linnet({"train", recipe, "train.max_steps=2", "evaluate.every_steps=0",
                                  "generate.tokens=0", "data.cache=false", "--plugin", plugin});
  EXPECT_EQ(trained.code, 0) << trained.err;
}

TEST_F(NewMechanism, TakesNoNameThatMeansSomethingElse) {
  const auto refused = [&](const std::string& name, const std::string& why) {
    expect_error({"attention", "new", name, "--plugin", "own"}, 2, why);
    expect_error({"attention", "new", name}, 2, why);
  };
  // Two _ together are reserved in C++, and "a_" would give a_.h beside a__mechanism().
  for (const char* name :
       {"fading__linear", "fading_", "_fading", "Fading", "2fading", "fading-2"}) {
    refused(name, concat("'", name, "' is no name of a mechanism: take lower-case letters"));
  }
  for (const char* name : {"null", "true", "on"}) {
    refused(name, concat("'", name, "' is a value in YAML, so that recipes cannot name it"));
  }
  for (const char* name : {"class", "double", "co_await", "xor_eq"}) {
    refused(name, concat("'", name, "' is a keyword of C++; choose another name, such as ", name,
                         "_mix"));
  }
  for (const char* name : {"linnet", "std", "tensor_core", "cuda", "common"}) {
    refused(name, concat("'", name,
                         "' is a namespace, a folder or a library that mechanisms use; choose "
                         "another name, such as ",
                         name, "_mix"));
  }
  EXPECT_FALSE(exists(folder_ / "own"));
}

TEST_F(NewMechanism, WritesIntoAFolderAlone) {
  folder_.write("afile", "text");
  expect_error({"attention", "new", "fading", "--plugin", ""}, 2,
               "must be a folder, found nothing");
  expect_error({"attention", "new", "fading", "--plugin", "afile"}, 2,
               "must be a folder, and afile is a file; name another");
  expect_error({"attention", "new", "fading", "--plugin", "afile/in/it"}, 2,
               "--plugin: afile is a file, and the plugin is written into a folder; name another");
  EXPECT_EQ(read_file(folder_ / "afile"), "text");
}

// The tutorial shows these parts as they are written.
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
  shown("struct Params {", "// 2. The mixer");
  shown("  Mixer(const Params& params", "  // q, k, v [B,T,H,K]");
  shown("template <typename Number>", "// 4. A limiting case");
  shown("  MixResult mix(", "  // The multiply-adds of mix()");
  shown("  MixerCost mix_cost(", " private:");
  shown("void without_decay(", "// 5. The entry");
  shown("  facts.variants", "  return define_mechanism");
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
  const std::string plugin = join_path(build_folder(), "plugin/libfading_linear.so");
  ASSERT_TRUE(exists(plugin));
  load_plugin(plugin);
  const std::string rows = added(lists[1]), row = rows.substr(0, rows.find('\n') + 1);
  EXPECT_TRUE(mechanism_table().ends_with(row)) << row;
  EXPECT_THAT(rows.substr(row.size()),
              testing::StartsWith("| [fading_linear](fading_linear/README"));
  expect_error({"attention", "new", "fading_linear"}, 2, "exists already");
}

}  // namespace
}  // namespace linnet
