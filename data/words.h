// White space and words, as this project counts them.
#pragma once

#include <cstddef>
#include <string_view>

namespace linnet {

// Whether a byte is white space in the sense of word counts: space, \t \n \v \f \r.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Number of maximal runs of bytes that are not white space.
size_t count_words(std::string_view text);

}  // namespace linnet
