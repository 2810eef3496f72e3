// The word tokenizer: white-space separated words of a vocabulary; each line end is <eos>.
#pragma once

#include <unordered_map>

#include "data/tokenizer.h"

namespace linnet {

inline constexpr std::string_view kUnknownWord = "<unk>";
inline constexpr std::string_view kEndOfLineWord = "<eos>";

// Counts the words of the training text and makes the vocabulary of them: sorted by descending
// frequency, ties by bytes, with <unk> and <eos> placed like any word (last when never seen).
class WordVocabularyBuilder {
 public:
  // Counts the words of a text, or of a piece of it that is cut at white space, and one <eos> per
  // line end.
  void add(std::string_view piece);
  // The text is over: a last line without '\n' counts as a line.
  void end_text();
  // The tokenizer; `max_size` > 0 keeps that many of the most frequent entries (<unk> and <eos>
  // always). Throws Error when no text was added, UsageError when max_size < 3.
  std::unique_ptr<Tokenizer> build(int64_t max_size = 0) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  void count(std::string_view word);
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> counts_;
  bool open_line_ = false;
};

// The vocabulary file: one word per line (LF or CRLF), the line number (from 0) is the id. Throws
// Error naming `what` for an empty, repeated or divided word. Without <unk>, unknown words are
// errors; <eos> is needed as soon as a text has a line end. A file may begin with a byte order
// mark.
std::unique_ptr<Tokenizer> word_tokenizer_from_payload(std::string_view text,
                                                       std::string_view what);
std::unique_ptr<Tokenizer> load_word_tokenizer(const std::string& path);
// Writes the vocabulary file. Throws UsageError when the tokenizer is not a word tokenizer.
void save_word_vocabulary(const Tokenizer& tokenizer, const std::string& path);

}  // namespace linnet
