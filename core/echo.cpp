// Shortening in the middle, and control characters spelt out.
#include "core/echo.h"

#include <algorithm>

#include "core/utf8.h"

namespace linnet {
namespace {

constexpr std::string_view kEllipsis = "…";
constexpr size_t kLongestLine = 2000, kLongestMessage = 20000;

// The longest end of at most `bytes` bytes that begins with a whole character.
std::string_view utf8_suffix(std::string_view text, size_t bytes) {
  size_t begin = text.size() - std::min(bytes, text.size());
  const auto continues = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u;
  };
  for (int i = 0; i < 3 && begin < text.size() && continues(begin); ++i) ++begin;
  return text.substr(begin);
}

// The pieces of the text that are not `is_separator`, each shortened.
template <typename IsSeparator>
std::string shortened_pieces(std::string_view text, size_t bytes, IsSeparator is_separator) {
  std::string out;
  while (!text.empty()) {
    const auto end = std::find_if(text.begin(), text.end(), is_separator);
    const auto length = static_cast<size_t>(end - text.begin());
    out += shortened(text.substr(0, length), bytes);
    if (length < text.size()) out += text[length];
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return out;
}

}  // namespace

std::string shortened(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  const size_t kept = bytes - kEllipsis.size(), first = kept - kept / 2;
  std::string out(utf8_prefix(text.substr(0, bytes), first));
  return out.append(kEllipsis).append(utf8_suffix(text, kept / 2));
}

std::string shortened_message(std::string_view text) {
  if (text.size() <= kLongestEcho) return std::string(text);
  const auto is_line_end = [](char c) { return c == '\n'; };
  const auto is_white = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  const std::string words = shortened_pieces(text, kLongestEcho, is_white);
  return shortened(shortened_pieces(words, kLongestLine, is_line_end), kLongestMessage);
}

std::string shell_word(std::string_view text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+:,=@%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return std::string(text);
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += "'\\'";
    out += c;
  }
  return out + "'";
}

std::string printable(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::string out;
  for (size_t i = 0; i < valid.size(); ++i) {
    auto byte = static_cast<unsigned char>(valid[i]);
    bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    // U+0080 to U+009F are control characters of their own, of two bytes each.
    if (byte == 0xC2 && static_cast<unsigned char>(valid[i + 1]) < 0xA0) {
      byte = static_cast<unsigned char>(valid[++i]);
      control = true;
    }
    if (control) {
      out += "\\x";
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    } else {
      out += valid[i];
    }
  }
  return out;
}

}  // namespace linnet
