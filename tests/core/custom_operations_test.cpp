// Operations that mechanisms write by hand, with a gradient of their own, instead of composing them
// of autograd's: few, and each with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "tests/data_path.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;

// Those of attention/ outside primitives/.
constexpr size_t kMaxOperations = 12;

// Folder and name -> the reasons that stand above its `record(` places, as `// Fused: REASON` in
// one line.
using Operations = std::map<std::string, std::vector<std::string>>;

// Adds those of one file. A folder's cuda/ belongs to it: an operation may have a place in both.
void add_operations(const std::string& path, const std::string& text, Operations& found) {
  static const std::regex place(R"re(\brecord(?:_many)?\s*\(\s*("[^"]*"|[A-Za-z_]\w*))re");
  static const std::regex reason(R"(\s*// Fused: (\S.*[.]))");
  std::string folder = fs::path(path).parent_path().generic_string();
  if (folder.ends_with("/cuda")) folder.resize(folder.size() - 5);
  for (std::sregex_iterator at(text.begin(), text.end(), place), end; at != end; ++at) {
    std::vector<std::string>& reasons = found[folder + " " + (*at)[1].str()];
    // The line above the one in which the place begins.
    const auto position = static_cast<size_t>(at->position());
    const size_t line = text.rfind('\n', position);
    if (line == std::string::npos || line == 0) continue;
    const size_t above = text.rfind('\n', line - 1);
    const size_t begin = above == std::string::npos ? 0 : above + 1;
    const std::string previous = text.substr(begin, line - begin);
    std::smatch match;
    if (std::regex_match(previous, match, reason)) reasons.push_back(match[1]);
  }
}

Operations operations_of_mechanisms() {
  const fs::path root = test::source_dir();
  Operations found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / "attention")) {
    const std::string extension = entry.path().extension().string();
    const std::string path = fs::relative(entry.path(), root).generic_string();
    if (path.starts_with("attention/primitives/")) continue;
    if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    add_operations(path, text.str(), found);
  }
  return found;
}

TEST(CustomOperations, AreAtMostTwelveEachWithItsReason) {
  const Operations found = operations_of_mechanisms();
  for (const auto& [name, reasons] : found) {
    ASSERT_FALSE(reasons.empty()) << name << ": write `// Fused: REASON.` above its record(";
    std::cout << name << ": " << reasons.front() << "\n";
  }
  EXPECT_GT(found.size(), 5u);
  EXPECT_LE(found.size(), kMaxOperations) << "compose the newest of autograd's operations";
}

TEST(CustomOperations, TheCheckFindsThem) {
  Operations found;
  add_operations("attention/a/a.cpp",
                 "  // Fused: it pays.\n  return record(\"x\", y);\n"
                 "  // Fast.\n  return record(\n      \"y\", y);\n"
                 "const auto z = linnet::record_many (kName, z);\n",
                 found);
  add_operations("attention/a/cuda/a.cpp", "record_many(\"x\", {y});", found);
  add_operations("attention/b/b.cpp", "record(\"x\", y); records(\"u\"); my_record(\"v\");", found);
  using ::testing::ElementsAre;
  using ::testing::Pair;
  EXPECT_THAT(found, ElementsAre(Pair("attention/a \"x\"", ElementsAre("it pays.")),
                                 Pair("attention/a \"y\"", ElementsAre()),
                                 Pair("attention/a kName", ElementsAre()),
                                 Pair("attention/b \"x\"", ElementsAre())));
}

}  // namespace
}  // namespace linnet
