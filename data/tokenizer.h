// Tokenizers: text to ids and back. Bytes, words of a vocabulary file, GPT-2 byte-pair encoding.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"

namespace linnet {

// What a recipe says about the tokenizer.
struct TokenizerConfig {
  std::string kind = "byte";    // byte | word | gpt2
  std::string path{};           // word: vocabulary file; gpt2: folder of the published files
  int64_t vocabulary_size = 0;  // word: at most so many entries when built; 0 = all
  bool eos = false;             // byte: add an end-of-text id (256)
  static void describe(ConfigDescription<TokenizerConfig>& d);
  void validate(const ConfigNode& at) const;
};

// Words that became <unk>.
struct UnknownWords {
  int64_t count = 0;
  std::string first;
  void add(std::string_view word) {
    if (count++ == 0) first = word;
  }
};

// Text to ids and back. Objects are immutable: any thread may call any function at any time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of `text`. Throws Error when the text is not valid UTF-8 (gpt2, word) or has a word
  // that the vocabulary lacks while it has no <unk>; with <unk>, adds such words to `unknown` (if
  // given).
  std::vector<int32_t> encode(std::string_view text, UnknownWords* unknown = nullptr) const;
  // The bytes of `ids`: decode(encode(text)) == text for byte and gpt2; words come back separated
  // by one space or newline. May end inside a UTF-8 sequence (see replace_invalid_utf8). The
  // end-of-text id of byte and gpt2 decodes to nothing. Throws Error for an id out of range.
  std::string decode(std::span<const int32_t> ids) const;

  virtual std::string_view kind() const = 0;
  // Ids are 0 .. vocabulary_size() - 1.
  virtual int32_t vocabulary_size() const = 0;
  // The id that ends a document (byte, gpt2) or a line (word); -1 if there is none.
  virtual int32_t eos_id() const = 0;
  // Whether each line end of the text becomes eos_id (word), so that documents need no separator.
  virtual bool lines_end_with_eos() const { return false; }

  // Everything that determines the ids, as one string that tokenizer_from_blob reads back.
  std::string serialise() const;
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
