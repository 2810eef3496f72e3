// One word for one thing: words that tests/core/banned_words.txt lists appear nowhere in the tree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/data_path.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;

struct BannedWord {
  std::string word, replacement;
};

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}
bool is_upper(char c) {
  return std::isupper(static_cast<unsigned char>(c)) != 0;
}
char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}
bool separates(char c) {
  return std::string_view(" \t\n/*#_-").find(c) != std::string_view::npos;
}

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Lines "word: replacement"; '#' begins a comment.
std::vector<BannedWord> read_banned_words(const std::string& text) {
  std::vector<BannedWord> result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(": ");
    result.push_back({line.substr(0, colon), line.substr(colon + 2)});
  }
  return result;
}

// Whether text[at] is the first letter of a word or of a part of an identifier: of Rows in kRows.
bool begins_part(const std::string& text, size_t at) {
  return at == 0 || !is_letter(text[at - 1]) || (is_upper(text[at]) && !is_upper(text[at - 1]));
}
// Whether text[at - 1] is the last letter of one.
bool ends_part(const std::string& text, size_t at) {
  return at == text.size() || !is_letter(text[at]) ||
         (is_upper(text[at]) && !is_upper(text[at - 1]));
}

// Whether `word` stands at text[at], as whole words or parts of an identifier; a plural counts.
bool stands_at(const std::string& text, size_t at, const std::string& word) {
  if (!begins_part(text, at)) return false;
  const bool exact = std::any_of(word.begin(), word.end(), is_upper);
  int run = 0;  // letters up to here that no other character parts
  for (const char c : word) {
    if (c == ' ') {
      const size_t before = at;
      while (at < text.size() && separates(text[at])) ++at;
      if (at == before) return false;
      run = 0;
    } else {
      if (at == text.size() || (exact ? text[at] : lower(text[at])) != c) return false;
      run = is_letter(c) ? run + 1 : 0;
      // "anew", "Anew" and "ANEW", but "ANew" are two words.
      if (!exact && run > 2 && is_upper(text[at]) != is_upper(text[at - 1])) return false;
      ++at;
    }
  }
  return ends_part(text, at) || (text[at] == 's' && ends_part(text, at + 1));
}

// "path:line: 'word' ..." for every banned word in a text.
std::vector<std::string> find_banned(const std::string& path, const std::string& text,
                                     const std::vector<BannedWord>& words) {
  std::vector<std::string> problems;
  int line = 1;
  for (size_t at = 0; at < text.size(); ++at) {
    for (const BannedWord& banned : words) {
      if (lower(text[at]) != lower(banned.word[0]) || !stands_at(text, at, banned.word)) continue;
      problems.push_back(path + ":" + std::to_string(line) + ": write '" + banned.replacement +
                         "' for '" + banned.word + "'");
    }
    if (text[at] == '\n') ++line;
  }
  return problems;
}

// Sources, READMEs, recipes and the scripts of tools; `path` is relative to the source directory.
bool is_checked(const fs::path& path) {
  static const std::set<std::string> kinds = {".h", ".cpp", ".cu", ".cuh", ".md", ".yaml", ".py"};
  const bool script = path.extension().empty() && *path.begin() == "tools";
  return path != "tests/core/words_test.cpp" && (script || kinds.contains(path.extension()));
}

std::vector<BannedWord> banned_words() {
  return read_banned_words(read(fs::path(test::source_dir()) / "tests/core/banned_words.txt"));
}

TEST(Words, NoBannedWordIsUsed) {
  const fs::path root = test::source_dir();
  const std::vector<BannedWord> words = banned_words();
  std::vector<std::string> problems = find_banned("README.md", read(root / "README.md"), words);
  int files = 1;
  for (const char* folder :
       {"attention", "autograd", "core", "data", "layers", "optim", "recipes", "tests", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path path = fs::relative(entry.path(), root);
      if (!entry.is_regular_file() || !is_checked(path)) continue;
      const std::vector<std::string> found =
          find_banned(path.generic_string(), read(entry.path()), words);
      problems.insert(problems.end(), found.begin(), found.end());
      ++files;
    }
  }
  EXPECT_GT(files, 500);
  EXPECT_THAT(problems, ::testing::IsEmpty());
}

TEST(Words, TheCheckFindsWhatItForbids) {
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  using ::testing::IsEmpty;
  const std::vector<BannedWord> words = banned_words();
  const auto problems = [&](const std::string& text) { return find_banned("a.h", text, words); };
  for (const auto& [word, replacement] : words) {
    SCOPED_TRACE(word);
    EXPECT_THAT(problems("// x\n// a " + word + ".\n"),
                ElementsAre("a.h:2: write '" + replacement + "' for '" + word + "'"));
    EXPECT_FALSE(replacement.empty());
    EXPECT_THAT(problems(replacement), IsEmpty());
  }
  for (const char* used :
       {"constexpr int kMostRows = 4;", "kFewest2", "int soft_max_rows;", "SOFT-MAX",
        "class CulpritError;", "the culprits", "int lack_of_rows();", "anew", "replay_anew(x)",
        "Anew", "made_again(lane)", "made  again", "values are made\n  // again"}) {
    EXPECT_THAT(problems(used), ElementsAre(HasSubstr("a.h:1: write"))) << used;
  }
  for (const char* fine : {"softmax", "Softmax", "the k most similar", "kMostly", "at most",
                           "black_offset", "a lack of rows", "renewal", "ANewKind", "aNewKind",
                           "made; again", "unmade again", "made against"}) {
    EXPECT_THAT(problems(fine), IsEmpty()) << fine;
  }
  EXPECT_TRUE(is_checked("core/a.h"));
  EXPECT_TRUE(is_checked("attention/lavo/cuda/a.cu"));
  EXPECT_TRUE(is_checked("recipes/quickstart/lm.yaml"));
  EXPECT_TRUE(is_checked("attention/README.md"));
  EXPECT_TRUE(is_checked("tools/quickstart"));
  EXPECT_FALSE(is_checked("tests/core/words_test.cpp"));
  EXPECT_FALSE(is_checked("tests/core/banned_words.txt"));
}

}  // namespace
}  // namespace linnet
