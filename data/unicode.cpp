// Tables of utf8proc, as tokenizers ask for them.
#include "data/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "core/error.h"

namespace linnet {
namespace {

constexpr int32_t kCharacters = 0x110000;

bool is_white_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Letters in circles and squares are alphabetic, although they are symbols by category.
bool is_alphabetic_symbol(int32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

CharacterClasses classes_of(int32_t c) {
  const utf8proc_category_t category = utf8proc_category(c);
  const auto within = [&](utf8proc_category_t first, utf8proc_category_t last) {
    return category >= first && category <= last;
  };
  const bool letter = within(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
  const bool mark = within(UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
  const bool symbol = c > 32 && c < 127 && !letter && category != UTF8PROC_CATEGORY_ND;
  const bool control = category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF;
  const bool word = letter || mark || within(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL) ||
                    category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D ||
                    is_alphabetic_symbol(c);
  int classes = 0;
  if (letter) classes |= kLetter;
  if (within(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO)) classes |= kNumber;
  if (is_white_space(c)) classes |= kWhiteSpace;
  if (symbol || within(UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO)) classes |= kPunctuation;
  if (category == UTF8PROC_CATEGORY_MN) classes |= kAccent;
  if (mark) classes |= kMark;
  if (control && c != '\t' && c != '\n' && c != '\r') classes |= kControl;
  if (word) classes |= kWordCharacter;
  return static_cast<CharacterClasses>(classes);
}

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<int32_t>(c))->combining_class;
}

// Each run of characters with a combining class is sorted by it: the canonical order.
void sort_marks(std::u32string& text) {
  const auto starts = [](char32_t c) { return combining_class(c) == 0; };
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if_not(begin, text.end(), starts);
    const auto end = std::find_if(begin, text.end(), starts);
    if (end - begin > 1) {
      std::stable_sort(begin, end, [](char32_t a, char32_t b) {
        return combining_class(a) < combining_class(b);
      });
    }
    begin = end;
  }
}

}  // namespace

const CharacterClasses* character_classes() {
  static const std::vector<CharacterClasses> classes = [] {
    std::vector<CharacterClasses> made(kCharacters);
    for (int32_t c = 0; c < kCharacters; ++c) made[static_cast<size_t>(c)] = classes_of(c);
    return made;
  }();
  return classes.data();
}

char32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t first = byte(at);
  if (first < 0x80) {
    ++at;
    return first;
  }
  if (first < 0xE0) {
    at += 2;
    return (first & 0x1F) << 6 | (byte(at - 1) & 0x3F);
  }
  if (first < 0xF0) {
    at += 3;
    return (first & 0x0F) << 12 | (byte(at - 2) & 0x3F) << 6 | (byte(at - 1) & 0x3F);
  }
  at += 4;
  return (first & 0x07) << 18 | (byte(at - 3) & 0x3F) << 12 | (byte(at - 2) & 0x3F) << 6 |
         (byte(at - 1) & 0x3F);
}

size_t previous_character(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

void append_utf8(char32_t character, std::string& text) {
  const auto push = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (character < 0x80) return push(character);
  if (character < 0x800) {
    push(0xC0 | character >> 6);
  } else {
    if (character < 0x10000) {
      push(0xE0 | character >> 12);
    } else {
      push(0xF0 | character >> 18);
      push(0x80 | (character >> 12 & 0x3F));
    }
    push(0x80 | (character >> 6 & 0x3F));
  }
  push(0x80 | (character & 0x3F));
}

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) characters += next_character(text, at);
  return characters;
}

std::string utf8_of(std::u32string_view characters) {
  std::string text;
  text.reserve(characters.size());
  for (const char32_t c : characters) append_utf8(c, text);
  return text;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

void append_lower(char32_t character, std::u32string& out) {
  if (character < 0x80) {
    out += character >= 'A' && character <= 'Z' ? character + 32 : character;
  } else if (character == 0x130) {
    out += U"i\u0307";  // the one character whose lower case is two, everywhere
  } else {
    out += static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(character)));
  }
}

void normalise(std::u32string& text, NormalForm form) {
  const bool compatible = form == NormalForm::nfkd || form == NormalForm::nfkc;
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::u32string parts;
  parts.reserve(text.size());
  std::array<int32_t, 32> buffer{};  // the longest decomposition has 18 characters
  int last_class = 0;
  for (const char32_t c : text) {
    if (c < 0x80) {
      parts += c;
      continue;
    }
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(c), buffer.data(),
                                               buffer.size(), options, &last_class);
    require(count >= 0 && static_cast<size_t>(count) <= buffer.size(),
            "utf8proc cannot decompose the character ", static_cast<uint32_t>(c));
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      parts += static_cast<char32_t>(buffer[i]);
  }
  sort_marks(parts);
  if (compose && !parts.empty()) {
    static_assert(sizeof(char32_t) == sizeof(int32_t));
    require(parts.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()),
            Cause{ErrorCode::out_of_range}, "a text of ", parts.size(),
            " characters is too long to compose");
    const auto length = utf8proc_normalize_utf32(
        reinterpret_cast<int32_t*>(parts.data()), static_cast<utf8proc_ssize_t>(parts.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    require(length >= 0, "utf8proc cannot compose the text");
    parts.resize(static_cast<size_t>(length));
  }
  text = std::move(parts);
}

bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
         (c >= 0x2B820 && c <= 0x2CEAF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

}  // namespace linnet
