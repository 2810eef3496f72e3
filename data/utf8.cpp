// UTF-8 validation and repair, word counts.
#include "data/utf8.h"

#include <cstdint>
#include <cstring>

#include "core/error.h"
#include "core/utf8.h"

namespace linnet {

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Eight ASCII bytes at a time: most text is nothing else.
    uint64_t word = 0;
    if (at + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const size_t length = utf8_character_bytes(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, std::string_view what) {
  const size_t at = find_invalid_utf8(text);
  if (at == std::string_view::npos) return;
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(text[at]);
  throw Error(concat(what, ": expected UTF-8 text, found the invalid byte 0x", kDigits[byte >> 4],
                     kDigits[byte & 15], " at byte offset ", at,
                     "; convert it to UTF-8 (for example with iconv)"));
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = utf8_character_bytes(text, at);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out;
}

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
