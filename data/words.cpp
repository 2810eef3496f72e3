// Word counts.
#include "data/words.h"

namespace linnet {

size_t count_words(std::string_view text) {
  size_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = is_space(c);
    words += !space && !inside;
    inside = !space;
  }
  return words;
}

}  // namespace linnet
