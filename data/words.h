// White space and words, as this project counts them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace linnet {

// Whether a byte is white space in the sense of word counts: space, \t \n \v \f \r.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Number of maximal runs of bytes that are not white space.
size_t count_words(std::string_view text);

// The end of the last white space in a text; 0 if there is none.
size_t end_of_last_space(std::string_view text);

// What a text that comes in pieces holds, wherever it is cut.
struct TextCounts {
  int64_t bytes = 0, words = 0, line_ends = 0;
  char last = ' ';  // byte
  void add(std::string_view piece);
  bool ends_line() const { return last == '\n'; }
};

}  // namespace linnet
