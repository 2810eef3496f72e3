#include "recipes/engine/weight_differences.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace linnet {
namespace {

constexpr size_t kMaxNames = 20;

// Parts of a name that are numbers as "*".
std::string without_numbers(const std::string& name) {
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    pattern += concat(begin == 0 ? "" : ".", number ? "*" : part);
    begin = end + 1;
  }
  return pattern;
}

}  // namespace

std::string names_of_layers(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, int64_t>> counts;
  std::unordered_map<std::string, size_t> places;  // files may have millions of names
  for (const std::string& name : names) {
    const auto [at, fresh] = places.try_emplace(without_numbers(name), counts.size());
    if (fresh) counts.emplace_back(at->first, 0);
    ++counts[at->second].second;
  }
  std::string text;
  for (size_t i = 0; i < std::min(counts.size(), kMaxNames); ++i) {
    const auto& [pattern, count] = counts[i];
    text += concat(i == 0 ? "" : ", ", pattern, count > 1 ? concat(" (", count, ")") : "");
  }
  if (counts.size() > kMaxNames) text += concat(" and ", counts.size() - kMaxNames, " more");
  return text;
}

}  // namespace linnet
