// Tokens that are found in texts as they are written, before a model sees the rest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_trie.h"

namespace linnet {

struct AddedToken {
  int32_t id = -1;
  std::string content;                  // not empty
  bool special = false;                 // decodes to nothing
  bool normalized = false;              // found in normalised text
  bool single_word = false;             // only where no letter, digit or mark touches it
  bool lstrip = false, rstrip = false;  // takes the white space before, or behind, along
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  // Calls on_text for what lies between tokens, unless it is empty, and on_token(id) for tokens:
  // the leftmost, and of these the longest. The text must be valid UTF-8.
  void split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;

 private:
  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // to indices of tokens_
  std::array<bool, 256> first_{};
};

}  // namespace linnet
