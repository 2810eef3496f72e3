// A word vocabulary, a line "====" and a text.
#include "data/word_tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {
namespace {

void check(const Tokenizer& tokenizer, std::string_view text) {
  save_word_vocabulary(tokenizer, "saved.txt");
  const auto copy = load_word_tokenizer("saved.txt");
  expect(copy->fingerprint() == tokenizer.fingerprint(), "a saved vocabulary reads back");
  UnknownWords unknown;
  const std::vector<int32_t> ids = tokenizer.encode(text, &unknown);
  expect(copy->encode(tokenizer.decode(ids)) == ids, "words that were decoded encode to their ids");
}

}  // namespace

void read_input(std::string_view input) {
  const auto [words, text] = two_files(input);
  MemoryFiles files;
  files["vocabulary.txt"] = words;
  try {
    check(*load_word_tokenizer("vocabulary.txt"), text);
  } catch (const Error&) {  // the same text may still make a vocabulary
  }
  WordVocabularyBuilder builder;
  builder.add(text);
  builder.end_text();
  check(*builder.build(static_cast<int64_t>(words.size())), text);
}

}  // namespace linnet::fuzz
