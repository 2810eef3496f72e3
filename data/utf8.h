// UTF-8: validation that names the offending byte, and text made printable.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace linnet {

// Offset of the first byte that is not part of a well-formed UTF-8 sequence (RFC 3629: no overlong
// forms, no surrogates, nothing above U+10FFFF), or std::string_view::npos when all are.
size_t find_invalid_utf8(std::string_view text);

// Throws Error naming `what` (a file, "prompt"), the offset and the byte, unless text is valid.
void require_utf8(std::string_view text, std::string_view what);

// The text with every ill-formed byte replaced by U+FFFD, for terminals, JSON and reports.
std::string replace_invalid_utf8(std::string_view text);

// Whether a byte is white space in the sense of this project's word counts: space, \t \n \v \f \r.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Number of maximal runs of bytes that are not white space.
size_t count_words(std::string_view text);

}  // namespace linnet
