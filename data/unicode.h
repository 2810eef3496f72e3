// Characters: their classes, lower case and decomposition (Unicode, by utf8proc).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace linnet {

// What tokenizers ask about a character; a character may be in several classes.
using CharacterClasses = uint8_t;
inline constexpr CharacterClasses kLetter = 1;           // L*
inline constexpr CharacterClasses kNumber = 2;           // N*
inline constexpr CharacterClasses kWhiteSpace = 4;       // White_Space
inline constexpr CharacterClasses kPunctuation = 8;      // P*, and every ASCII symbol
inline constexpr CharacterClasses kAccent = 16;          // Mn
inline constexpr CharacterClasses kMark = 32;            // M*
inline constexpr CharacterClasses kControl = 64;         // Cc and Cf but for tab, LF and CR
inline constexpr CharacterClasses kWordCharacter = 128;  // \w of regular expressions

// The classes of characters 0 to 0x10FFFF, by number.
const CharacterClasses* character_classes();

// The character at text[at], which is moved behind it. The text must be valid UTF-8.
char32_t next_character(std::string_view text, size_t& at);
// Where the character before text[at] begins; at > 0.
size_t previous_character(std::string_view text, size_t at);
void append_utf8(char32_t character, std::string& text);
std::u32string characters_of(std::string_view text);
std::string utf8_of(std::u32string_view characters);
size_t count_characters(std::string_view text);

// Appends the lower case of one character, whatever stands around it: 'Σ' becomes 'σ' at the end of
// a word too.
void append_lower(char32_t character, std::u32string& out);

enum class NormalForm { nfd, nfc, nfkd, nfkc };
// The normal form, in time linear in the text but for runs of marks, which are sorted.
void normalise(std::u32string& text, NormalForm form);

// Whether BERT sets the character apart as an ideograph of Chinese, Japanese or Korean.
bool is_ideograph(char32_t character);

}  // namespace linnet
