// UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF): the one decoder,
// validation that names the offending byte, and text made printable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace linnet {

// Length in bytes of the character that starts at text[at], 0 if there is no well-formed one.
// Needs at < text.size().
size_t utf8_character_bytes(std::string_view text, size_t at);

// Offset of the first byte that is not part of a well-formed sequence, or std::string_view::npos
// when all are.
size_t find_invalid_utf8(std::string_view text);

// Throws Error naming `what` (a file, "prompt"), the offset and the byte, unless text is valid.
// `offset`: of the text in what it is a part of.
void require_utf8(std::string_view text, std::string_view what, uint64_t offset = 0);

// The longest beginning of at most `bytes` bytes that cuts no character apart.
std::string_view utf8_prefix(std::string_view text, size_t bytes);

// The text with every ill-formed byte replaced by U+FFFD, for terminals, JSON and reports.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace linnet
