// Nearest words by edit distance.
#include "core/suggest.h"

#include <algorithm>
#include <tuple>

namespace linnet {
namespace {

constexpr size_t kLongestWord = 256;  // longer words are nobody's typing error

int common_prefix(std::string_view a, std::string_view b) {
  return static_cast<int>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

int common_suffix(std::string_view a, std::string_view b) {
  return static_cast<int>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first -
                          a.rbegin());
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> before(columns), last(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      const int substitution = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& candidates) {
  if (word.size() > kLongestWord) return {};
  std::vector<std::tuple<int, int, int, std::string>> ranked;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    const int longest = static_cast<int>(std::max(word.size(), candidate.size()));
    if (distance > std::max(1, longest / 3)) continue;
    ranked.emplace_back(distance, -common_prefix(word, candidate), -common_suffix(word, candidate),
                        candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a)) <
           std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b));
  });
  std::vector<std::string> words;
  words.reserve(ranked.size());
  for (auto& entry : ranked) words.push_back(std::move(std::get<3>(entry)));
  return words;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates) {
  if (candidates.empty()) return "nothing is allowed here";
  const std::vector<std::string> near = nearest_words(word, candidates);
  if (!near.empty()) return "did you mean '" + near.front() + "'?";
  std::string text = "expected one of ";
  for (size_t i = 0; i < candidates.size(); ++i) text += (i == 0 ? "" : ", ") + candidates[i];
  return text;
}

}  // namespace linnet
