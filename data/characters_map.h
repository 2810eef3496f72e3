// SentencePiece's precompiled normaliser: strings, and what takes their place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace linnet {

class CharactersMap {
 public:
  // Of `precompiled_charsmap` in a tokenizer.json: in base64 the size of a double array in bytes
  // (32 bits, little-endian), the array (Aoe 1989, in Darts-clone's units of 32 bits), and strings
  // each of which ends with a zero byte. Throws Error that begins with `what` where it is not that.
  CharactersMap(std::string_view base64, std::string_view what);
  // The text with the longest known string from left to right replaced, as SentencePiece does;
  // `text` must be valid UTF-8, and so is the result. Throws Error for a damaged map.
  std::string replaced(std::string_view text) const;

 private:
  struct Match {
    size_t bytes = 0;  // 0: none
    uint32_t value = 0;
  };
  Match longest(std::string_view text) const;
  std::string_view string_at(uint32_t value) const;

  std::vector<uint32_t> units_;
  std::string strings_;
};

}  // namespace linnet
