// A walk through a double array whose every step is checked.
#include "data/characters_map.h"

#include <array>
#include <optional>

#include "core/error.h"
#include "core/utf8.h"
#include "data/unicode.h"

namespace linnet {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::optional<std::string> bytes_of_base64(std::string_view text) {
  static const std::array<int8_t, 256> kValues = [] {
    std::array<int8_t, 256> values;
    values.fill(-1);
    for (size_t i = 0; i < kDigits.size(); ++i)
      values[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
    return values;
  }();
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int8_t value = kValues[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  return bytes;
}

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i)
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << 8 * i;
  return value;
}

// Parts of a unit.
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & 1U << 9) >> 6);
}
uint32_t label_of(uint32_t unit) {
  return unit & (1U << 31 | 0xFF);
}
bool has_value(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}

}  // namespace

CharactersMap::CharactersMap(std::string_view base64, std::string_view what) {
  const Cause cause{ErrorCode::malformed, "precompiled_charsmap", what};
  const std::optional<std::string> bytes = bytes_of_base64(base64);
  require(bytes && bytes->size() > 8, cause, what,
          ": precompiled_charsmap is not the base64 of a map of characters");
  const size_t size = little_endian(*bytes);
  require(size >= 4 && size % 4 == 0 && size < bytes->size() - 4, cause, what,
          ": precompiled_charsmap says that its array has ", size, " bytes, and all of it are ",
          bytes->size());
  for (size_t at = 4; at < 4 + size; at += 4)
    units_.push_back(little_endian(std::string_view(*bytes).substr(at)));
  strings_ = bytes->substr(4 + size);
  require(strings_.back() == '\0' && find_invalid_utf8(strings_) == std::string::npos, cause, what,
          ": the strings of precompiled_charsmap are not UTF-8 that ends with a zero byte");
}

CharactersMap::Match CharactersMap::longest(std::string_view text) const {
  Match best;
  size_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label_of(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    const bool whole = i + 1 == text.size() || (text[i + 1] & 0xC0) != 0x80;
    if (has_value(unit) && whole && node < units_.size())
      best = {i + 1, units_[node] & ~(1U << 31)};
  }
  return best;
}

std::string_view CharactersMap::string_at(uint32_t value) const {
  require(value < strings_.size() && (value == 0 || strings_[value - 1] == '\0'),
          "the tokenizer's precompiled_charsmap is damaged: no string begins at ", value);
  return strings_.c_str() + value;
}

std::string CharactersMap::replaced(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Match match = longest(text.substr(at));
    const size_t begin = at;
    if (match.bytes > 0) {
      result += string_at(match.value);
      at += match.bytes;
    } else {
      next_character(text, at);
      result += text.substr(begin, at - begin);
    }
  }
  return result;
}

}  // namespace linnet
