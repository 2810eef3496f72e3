// UTF-8: the one decoder, validation and repair.
#include "core/utf8.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace linnet {

size_t utf8_character_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second > 0x9F;
  const bool too_large = first == 0xF4 && second > 0x8F;
  return overlong || surrogate || too_large ? 0 : length;
}

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

void require_utf8(std::string_view text, std::string_view what, uint64_t offset) {
  const size_t at = find_invalid_utf8(text);
  if (at == std::string_view::npos) return;
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(text[at]);
  throw Error({ErrorCode::malformed, "", what},
              concat(what, ": expected UTF-8 text, found the invalid byte 0x", kDigits[byte >> 4],
                     kDigits[byte & 15], " at byte offset ", offset + at,
                     "; convert it to UTF-8 (for example with iconv)"));
}

std::string_view utf8_prefix(std::string_view text, size_t bytes) {
  if (bytes >= text.size()) return text;
  size_t end = 0;
  while (end < text.size()) {
    const size_t next = end + std::max<size_t>(utf8_character_bytes(text, end), 1);
    if (next > bytes) break;
    end = next;
  }
  return text.substr(0, end);
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

}  // namespace linnet
