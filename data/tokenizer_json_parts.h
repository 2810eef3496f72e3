// The parts of Hugging Face's tokenizer.json that linnet does, as plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/added_tokens.h"
#include "data/bert_text.h"
#include "data/characters_map.h"
#include "data/tokenizer.h"

namespace linnet {

inline constexpr std::string_view kMetaspace = "\u2581";  // Unigram's space

struct NormalizerStep {
  enum class Kind { bert, lowercase, strip_accents, form, map, strip, join_spaces };
  Kind kind = Kind::bert;
  BertTextOptions bert{};                    // bert
  NormalForm form = NormalForm::nfc;         // form
  std::shared_ptr<const CharactersMap> map;  // map
  bool left = false, right = false;          // strip: white space at these ends
  std::string content;                       // join_spaces: what two or more spaces become
};

enum class PreTokenizerKind {
  byte_level,   // ByteLevel: the pieces of GPT-2
  bert,         // BertPreTokenizer: white space divides, punctuation stands alone
  words,        // Whitespace: runs of word characters, runs of others
  white_space,  // WhitespaceSplit
  // Metaspace: spaces become U+2581, one stands before the text, and each begins a piece.
  metaspace,
  metaspace_words,  // WhitespaceSplit, then Metaspace of each word
};

struct TokenizerJsonParts {
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;  // in this order
  PreTokenizerKind pre_tokenizer = PreTokenizerKind::byte_level;
  bool prefix_space = false;  // byte_level: a space before a text that begins without one
  PairStyle pair_style = PairStyle::plain;
  SpecialIds special;
  std::vector<std::string> tokens;  // by id, as the file spells them
  bool bpe = false;
  std::string merges;          // bpe: one a line
  std::vector<double> scores;  // Unigram: by id; empty for other models
  int32_t unknown_id = -1;     // Unigram
  WordPieceOptions wordpiece;  // otherwise

  bool unigram() const { return !scores.empty(); }
};

// Reads the text of a tokenizer.json. `truncation` and `padding` are left to the recipe, and the
// decoder to Tokenizer::decode; every other part that linnet would not do exactly as Hugging Face's
// library is refused. Errors begin with `what` and name the part: "model.byte_fallback".
TokenizerJsonParts read_tokenizer_json(std::string_view text, std::string_view what);

}  // namespace linnet
