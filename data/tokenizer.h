// Tokenizers: text to ids and back. Their kinds are listed in tokenizer_kinds.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer_config.h"

namespace linnet {

// Words that became <unk>.
struct UnknownWords {
  int64_t count = 0;
  std::string first;
  void add(std::string_view word) {
    if (count++ == 0) first = word;
  }
};

// Ids with a part of their own in the input of models; -1: the tokenizer has none.
struct SpecialIds {
  int32_t pad = -1, unk = -1, cls = -1, sep = -1, mask = -1, bos = -1, eos = -1;
};

// What stands around one text or two (pair_encoding.h).
enum class PairStyle {
  plain,    // A; A B
  bert,     // [CLS] A [SEP]; [CLS] A [SEP] B [SEP], the second text and its end of type 1
  roberta,  // <s> A </s>; <s> A </s></s> B </s>
  t5,       // A </s>; A </s> B </s>
};

// Text to ids and back. Objects are immutable: any thread may call any function at any time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of `text`. Throws Error when the text is not valid UTF-8 (all but byte) or has a word
  // that the vocabulary lacks while it has no <unk>; with <unk>, adds such words to `unknown` (if
  // given).
  std::vector<int32_t> encode(std::string_view text, UnknownWords* unknown = nullptr) const;
  // Where a text that begins with `text`, valid UTF-8, can be cut so that the ids of the parts are
  // those of the whole: the last such place that more text does not change; 0 if there is none.
  virtual size_t last_cut(std::string_view /*text*/) const { return 0; }
  // The bytes of `ids`: decode(encode(text)) == text for bytes and byte-level BPE; words, and words
  // put together from pieces, come back separated by one space or newline. May end inside a UTF-8
  // sequence (see replace_invalid_utf8). Special ids decode to nothing, but for that of unknown
  // words. Throws Error for an id out of range.
  std::string decode(std::span<const int32_t> ids) const;

  virtual std::string_view kind() const = 0;
  // Ids are 0 .. vocabulary_size() - 1.
  virtual int32_t vocabulary_size() const = 0;
  // The id that ends a line (word) or a document ([SEP] of BERT); -1 if there is none.
  virtual int32_t eos_id() const = 0;
  virtual SpecialIds special_ids() const;
  // One of them by its name: pad, unk, cls, sep, mask, bos or eos. Throws Error for another name.
  int32_t special_id(std::string_view name) const;
  virtual PairStyle pair_style() const { return PairStyle::plain; }
  // Whether decode() puts a separator between this id and the one before it.
  virtual bool follows_separator(int32_t /*id*/) const { return false; }
  // Whether each line end of the text becomes eos_id (word), so that documents need no separator.
  virtual bool lines_end_with_eos() const { return false; }

  // Everything that determines the ids, as one string that tokenizer_from_blob reads back.
  std::string serialise() const;
  // The files, by name, from which other programs make the same tokenizer (Hugging Face's names);
  // none where there are no such programs.
  virtual std::map<std::string, std::string> published_files() const { return {}; }
  // Hash of serialise(): equal fingerprints give equal ids.
  uint64_t fingerprint() const;

 protected:
  virtual void encode_impl(std::string_view text, std::vector<int32_t>& ids,
                           UnknownWords* unknown) const = 0;
  virtual void append_bytes(int32_t id, std::string& text) const = 0;
  // What serialise() writes after its header line.
  virtual std::string payload() const = 0;
};

// The tokenizer of a recipe. Throws UsageError for an unknown kind or a missing path, Error for a
// missing or broken file. A word tokenizer without a path must be built from the training text
// (WordVocabularyBuilder).
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config);

// The inverse of Tokenizer::serialise. Throws Error that begins with `what` for a broken blob.
std::unique_ptr<Tokenizer> tokenizer_from_blob(std::string_view blob,
                                               std::string_view what = "tokenizer");

}  // namespace linnet
