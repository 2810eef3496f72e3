// The nearest of some known words to a misspelt one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace linnet {

// Edit distance: insertions, deletions, substitutions and swaps of neighbours each count one
// (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The candidates near enough to `word` to be meant, nearest first; at equal distance those that
// share more of their beginning, then more of their end, come first.
std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& candidates);

// "did you mean 'rank'?" or, when nothing is near, "expected one of rank, basis, window".
std::string suggestion(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace linnet
