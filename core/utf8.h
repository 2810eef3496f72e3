// Well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
#pragma once

#include <cstddef>
#include <string_view>

namespace linnet {

// Length in bytes of the character that starts at text[at], 0 if there is no well-formed one.
// Needs at < text.size().
size_t utf8_character_bytes(std::string_view text, size_t at);

}  // namespace linnet
