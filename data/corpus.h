// A tokenized split, and how many bytes and words each token stands for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/token_array.h"
#include "data/tokenizer.h"

namespace linnet {

struct Document {
  std::string name;
  int64_t begin = 0;  // of its first token; it ends where the next document begins
  int64_t bytes = 0;  // of the text
  int64_t words = 0;  // white-space separated; WikiText counts each line end as one word more
};

// All tokens of a split, document after document.
struct TokenizedCorpus {
  TokenArray tokens;
  std::vector<Document> documents;

  int64_t size() const { return tokens.size(); }
  int64_t document_end(size_t document) const {
    return document + 1 < documents.size() ? documents[document + 1].begin : size();
  }
  // The document that holds the token at `position`; 0 <= position < size().
  size_t document_of(int64_t position) const;
  int64_t bytes() const;
  int64_t words() const;
};

// How many bytes and words of text a run of tokens stands for, so that the likelihood of any scored
// part of a document can be given per byte and per word. Exact for bytes and byte-level BPE of
// whole documents; words, and the pieces that begin one, count their separator as one byte.
class TokenMeasure {
 public:
  // `line_end_is_word`: WikiText's protocol. `eos_is_line_end`: documents whose lines were stripped
  // and ended with eos.
  TokenMeasure(const Tokenizer& tokenizer, bool line_end_is_word, bool eos_is_line_end);
  int64_t bytes(int32_t id) const { return entries_[static_cast<size_t>(id)].bytes; }
  // Words that begin in `id` when it follows `previous` (-1 at the start of a document), plus its
  // line ends where these count.
  int64_t words(int32_t previous, int32_t id) const {
    const Entry& entry = entries_[static_cast<size_t>(id)];
    const bool inside = previous >= 0 && entries_[static_cast<size_t>(previous)].ends_in_word;
    return entry.words - (inside && entry.starts_in_word);
  }

 private:
  struct Entry {
    int32_t bytes = 0, words = 0;
    bool starts_in_word = false, ends_in_word = false;
  };
  std::vector<Entry> entries_;
};

}  // namespace linnet
