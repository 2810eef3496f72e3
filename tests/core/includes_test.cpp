// The order of the folders, read from every #include: none points right, and no header of ours
// pulls in a heavy one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/data_path.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;

// The folders that each folder may include. Nobody but tests sees tests or (tools aside) tools.
const std::map<std::string, std::set<std::string>>& allowed_folders() {
  static const std::map<std::string, std::set<std::string>> allowed = {
      {"core", {"core"}},
      {"autograd", {"core", "autograd"}},
      {"layers", {"core", "autograd", "layers"}},
      {"attention", {"core", "autograd", "layers", "attention"}},
      {"optim", {"core", "autograd", "optim"}},
      {"data", {"core", "data"}},
      {"recipes", {"core", "autograd", "layers", "attention", "optim", "data", "recipes"}},
      {"tools", {"core", "autograd", "layers", "attention", "optim", "data", "recipes", "tools"}},
      {"tests",
       {"core", "autograd", "layers", "attention", "optim", "data", "recipes", "tools", "tests"}}};
  return allowed;
}

// Several seconds of compile time for every file that sees them.
bool is_heavy(const std::string& header) {
  static const std::regex heavy(
      "(spdlog|fmt|CLI|yaml-cpp|nlohmann|Eigen|gloo|unsupported/"
      "Eigen|oneapi|hdf5|utf8proc).*|dnnl.*|H5.*");
  return std::regex_match(header, heavy);
}

struct FileCheck {
  std::vector<std::string> problems;
  int includes = 0;
};

// Checks one file of ours; `path` is relative to the source directory.
FileCheck check_includes(const std::string& path, const std::string& text) {
  static const std::regex include(R"(^\s*#\s*include\s*(["<])([^">]+)[">])");
  const std::string folder = path.substr(0, path.find('/'));
  const bool header = path.ends_with(".h") || path.ends_with(".cuh");
  FileCheck result;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    ++result.includes;
    const std::string target = match[2];
    const std::string where = path + ":" + std::to_string(number) + " includes " + target;
    if (header && is_heavy(target)) {
      result.problems.push_back(where + ": heavy headers belong in .cpp files");
    }
    if (match[1] != "\"") continue;
    const std::string other = target.substr(0, target.find('/'));
    if (!allowed_folders().contains(other)) {
      result.problems.push_back(where + ": name files of ours from the top: \"folder/file.h\"");
    } else if (!allowed_folders().at(folder).contains(other)) {
      result.problems.push_back(where + ": " + folder + " must not see " + other);
    }
  }
  return result;
}

TEST(Includes, PointLeftAndHeadersStayLight) {
  const fs::path root = test::source_dir();
  std::vector<std::string> problems;
  int files = 0, includes = 0;
  for (const auto& [folder, allowed] : allowed_folders()) {
    ASSERT_TRUE(fs::is_directory(root / folder)) << folder;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") {
        continue;
      }
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      const FileCheck check =
          check_includes(fs::relative(entry.path(), root).generic_string(), text.str());
      problems.insert(problems.end(), check.problems.begin(), check.problems.end());
      includes += check.includes;
      ++files;
    }
  }
  EXPECT_GT(files, 20);
  EXPECT_GT(includes, files);
  EXPECT_THAT(problems, ::testing::IsEmpty());
}

TEST(Includes, TheCheckFindsWhatItForbids) {
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  const auto problems = [](const char* path, const char* text) {
    return check_includes(path, text).problems;
  };
  EXPECT_THAT(
      problems("core/tensor.h", "// x\n#include \"autograd/variable.h\"\n"),
      ElementsAre(HasSubstr("core/tensor.h:2 includes autograd/variable.h: core must not")));
  EXPECT_THAT(problems("optim/a.cpp", "#include \"layers/module.h\""),
              ElementsAre(HasSubstr("optim must not see layers")));
  EXPECT_THAT(problems("data/a.cpp", "# include \"autograd/ops.h\""),
              ElementsAre(HasSubstr("data must not see autograd")));
  EXPECT_THAT(problems("recipes/engine/a.cpp", "#include \"tests/data_path.h\""),
              ElementsAre(HasSubstr("recipes must not see tests")));
  EXPECT_THAT(problems("core/a.h", "#include <Eigen/Core>"), ElementsAre(HasSubstr("heavy")));
  EXPECT_THAT(problems("core/a.h", "  #include <H5public.h>"), ElementsAre(HasSubstr("heavy")));
  EXPECT_THAT(problems("core/a.h", "#include \"tensor.h\""),
              ElementsAre(HasSubstr("from the top")));
  EXPECT_THAT(problems("core/a.cpp", "#include <Eigen/Core>\n#include \"core/tensor.h\""),
              ElementsAre());
  EXPECT_THAT(problems("attention/lavo/lavo.cpp", "#include \"layers/token_mixer.h\""),
              ElementsAre());
}

}  // namespace
}  // namespace linnet
