// Word counts.
#include "data/words.h"

#include <algorithm>

namespace linnet {

size_t count_words(std::string_view text) {
  TextCounts counts;
  counts.add(text);
  return static_cast<size_t>(counts.words);
}

size_t end_of_last_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_space(text[end - 1])) --end;
  return end;
}

void TextCounts::add(std::string_view piece) {
  if (piece.empty()) return;
  bool inside = !is_space(last);
  for (const char c : piece) {
    const bool space = is_space(c);
    words += !space && !inside;
    inside = !space;
  }
  bytes += static_cast<int64_t>(piece.size());
  line_ends += std::count(piece.begin(), piece.end(), '\n');
  last = piece.back();
}

}  // namespace linnet
