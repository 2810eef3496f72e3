// Text from outside in messages: none of it is echoed at any length, and a terminal obeys none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace linnet {

// Longer than any key, value or name that is meant, and than most paths.
inline constexpr size_t kLongestEcho = 400;

// The text, or where it has more than `bytes` bytes (at least 8) as many from its beginning and its
// end, with "…" between; no character is cut apart.
std::string shortened(std::string_view text, size_t bytes = kLongestEcho);

// A message in which every word (what stands between white space), every line and the whole are
// shortened: what linnet says itself is within these limits.
std::string shortened_message(std::string_view text);

// The text as one word of a shell command: in single quotes where the shell would read it
// otherwise.
std::string shell_word(std::string_view text);

// For terminals: control characters but line ends and tabs are spelt out ("\x1b"), and bytes that
// are not UTF-8 become U+FFFD.
std::string printable(std::string_view text);

}  // namespace linnet
