// BERT's basic tokenizer: text to words, each punctuation mark a word of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/piece_cache.h"
#include "data/tokenizer.h"
#include "data/wordpiece.h"

namespace linnet {

struct BertTextOptions {
  bool clean = true;          // drop NUL, U+FFFD and control characters; white space is a space
  bool ideographs = true;     // spaces around ideographs
  bool strip_accents = true;  // decompose, drop Mn
  bool lowercase = true;
  // As Hugging Face's library, not BERT's published code: private use characters are dropped, and
  // U+2B820-2B91F are no ideographs.
  bool as_library = false;
};

// The first four steps, in this order, on any text.
void normalise_bert(std::u32string& text, const BertTextOptions& options);

// Calls on_word(std::string_view) for each word of normalised text: runs between white space and
// punctuation, and each punctuation mark.
template <typename OnWord>
void for_each_bert_word(std::string_view text, const OnWord& on_word);

// Tokenizer::last_cut for words, whatever normalises them: behind an ASCII space, tab, LF or CR,
// which no word holds, and across which no character is composed or moved.
size_t last_cut_of_words(std::string_view text);

// From text to ids, the steps together: plain ASCII goes a faster way. Any thread may call.
class BertEncoder {
 public:
  BertEncoder(BertTextOptions options, const WordPiece& model);
  // Appends the ids of valid UTF-8 text; adds words that became [UNK] to `unknown`, if given.
  void encode(std::string_view text, std::vector<int32_t>& ids, UnknownWords* unknown) const;

 private:
  struct Workspace {
    PieceCache cache;
    std::string lowered;
  };
  void encode_chunk(std::string_view chunk, Workspace& workspace, std::vector<int32_t>& ids,
                    UnknownWords* unknown) const;

  BertTextOptions options_;
  const WordPiece& model_;
  mutable WorkspacePool<Workspace> pool_;
};

}  // namespace linnet

#include "data/unicode.h"

template <typename OnWord>
void linnet::for_each_bert_word(std::string_view text, const OnWord& on_word) {
  const CharacterClasses* classes = character_classes();
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t before = at;
    const CharacterClasses found = classes[next_character(text, at)];
    if (!(found & (kWhiteSpace | kPunctuation))) continue;
    if (before > begin) on_word(text.substr(begin, before - begin));
    if (found & kPunctuation) on_word(text.substr(before, at - before));
    begin = at;
  }
  if (begin < text.size()) on_word(text.substr(begin));
}
