// Unigram (Kudo 2018): a piece of text as the tokens whose scores have the greatest sum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_trie.h"
#include "data/piece_cache.h"

namespace linnet {

class Unigram {
 public:
  // The token of id i is tokens[i], not empty and valid UTF-8, and its score the logarithm of its
  // probability. A character that is no token costs 10 more than the lowest score.
  Unigram(const std::vector<std::string>& tokens, std::vector<double> scores, int32_t unknown_id);
  // Appends the ids of valid UTF-8; unknown characters next to each other are one unknown token. Of
  // equal sums the one found first stays, as in Hugging Face's library. Remembers pieces in
  // `cache`.
  void encode_piece(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const;
  int32_t unknown_id() const { return unknown_id_; }

 private:
  void encode_new_piece(std::string_view piece, std::vector<int32_t>& ids) const;

  ByteTrie trie_;
  std::vector<double> scores_;
  int32_t unknown_id_;
  double unknown_score_;
};

}  // namespace linnet
