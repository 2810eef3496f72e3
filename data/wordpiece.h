// WordPiece (Wu et al. 2016; Devlin et al. 2019): a word as the longest tokens from left to right.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_trie.h"
#include "data/piece_cache.h"
#include "data/tokenizer.h"

namespace linnet {

struct WordPieceOptions {
  int32_t unknown_id = -1;
  std::string prefix = "##";   // of tokens that go on with a word
  int64_t longest_word = 100;  // characters; longer words are unknown
};

class WordPiece {
 public:
  // The token of id i is tokens[i]; an empty one is never used.
  WordPiece(const std::vector<std::string>& tokens, WordPieceOptions options);
  // Appends the ids of a word: [UNK] alone when no tokens make it. Remembers words in `cache`.
  void encode_word(std::string_view word, PieceCache& cache, std::vector<int32_t>& ids) const;
  // What decode() appends for a token behind `text`.
  void append_token(std::string_view token, std::string& text) const;
  bool continues(std::string_view token) const {
    return !options_.prefix.empty() && token.starts_with(options_.prefix);
  }
  int32_t unknown_id() const { return options_.unknown_id; }

 private:
  void encode_new_word(std::string_view word, std::vector<int32_t>& ids) const;

  WordPieceOptions options_;
  ByteTrie trie_;
  int32_t continuation_ = -1;  // the node of the prefix
};

}  // namespace linnet
