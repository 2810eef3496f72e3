// What the comment at the head of a recipe says.
#pragma once

#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "core/files.h"
#include "tests/data_path.h"

namespace linnet::test {

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

class RecipeHeader {
 public:
  // Of a file of the source directory, "recipes/lavo/t2_pg19.yaml".
  explicit RecipeHeader(const std::string& path) : path_(path) {
    std::istringstream file(read_file(source_dir() + "/" + path, 1 << 20));
    for (std::string line; std::getline(file, line) && line.starts_with("#");) {
      lines_.push_back(line.substr(1));
      text_ += (text_.empty() ? "" : " ") + trimmed(lines_.back());
    }
  }

  // Its first command that names the recipe itself, in one line and without the remark behind it,
  // which two blanks set off; "" for none.
  std::string command() const {
    for (size_t i = 0; i < lines_.size(); ++i) {
      std::string command = trimmed(lines_[i]);
      if (!command.starts_with("linnet ") || !holds(command + " ", path_ + " ")) continue;
      while (!holds(command, "  ") && i + 1 < lines_.size() && lines_[i + 1].starts_with("     ")) {
        if (command.ends_with('\\')) command = trimmed(command.substr(0, command.size() - 1));
        command += " " + trimmed(lines_[++i]);
      }
      return command.substr(0, command.find("  "));
    }
    return "";
  }

  // Its estimate of one run: "20 hours of training on one CPU core (cosFormer)"; "" for none.
  std::string time() const {
    static const std::regex kTime(
        "Estimated(?: for (\\w+))?[^:]*: (.*?(?:second|minute|hour|day).*?)(?:[,;] .*)?");
    std::smatch found;
    const std::string sentence = estimate();
    if (!std::regex_match(sentence, found, kTime)) return "";
    return found[2].str() + (found[1].matched ? " (" + found[1].str() + ")" : "");
  }
  bool has_memory() const { return has(estimate(), "[0-9] (MB|GB|GiB)"); }
  // Of a training; of a benchmark, those of a pass.
  bool has_tokens() const {
    return has(text_, "updates of [0-9,]+ .*[0-9] (G tokens|million|billion)");
  }
  bool says(const std::string& words) const { return holds(text_, words); }

  // The date of its figures, "2026-11-27"; "" where it has none.
  std::string measured() const {
    static const std::regex kMeasured("(?:[Mm]easured (?:on )?|On )(20[0-9]{2}-[0-9]{2}-[0-9]{2})");
    std::smatch found;
    return std::regex_search(text_, found, kMeasured) ? found[1].str() : "";
  }

 private:
  static bool has(const std::string& text, const char* pattern) {
    return std::regex_search(text, std::regex(pattern));
  }
  // The sentence.
  std::string estimate() const {
    const size_t begin = text_.find("Estimated");
    if (begin == std::string::npos) return "";
    return text_.substr(begin, text_.find(". ", begin) - begin);
  }

  std::string path_;
  std::vector<std::string> lines_;  // without their "#"
  std::string text_;                // in one line
};

}  // namespace linnet::test
