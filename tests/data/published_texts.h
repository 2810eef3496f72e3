// The test vectors that are published with tokenizers.
#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/files.h"
#include "tests/data_path.h"

namespace linnet::test {

// Texts with a separator between, and a line of ids for each; a last text may be empty and have no
// line.
inline std::vector<std::pair<std::string, std::vector<int32_t>>> published_texts(
    const std::string& input, const std::string& output) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::string texts = read_file(input);
  std::istringstream lines(read_file(output));
  std::vector<std::pair<std::string, std::vector<int32_t>>> found;
  std::string line;
  for (size_t end = 0; end != std::string::npos;) {
    end = texts.find(separator);
    line.clear();
    std::getline(lines, line);
    std::istringstream numbers(line);
    found.emplace_back(texts.substr(0, end),
                       std::vector<int32_t>{std::istream_iterator<int32_t>(numbers), {}});
    texts = end == std::string::npos ? "" : texts.substr(end + separator.size());
  }
  return found;
}

}  // namespace linnet::test
