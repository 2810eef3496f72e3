// A vocab.txt of BERT, a line "====" and a text.
#include "data/wordpiece_tokenizer.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {

void read_input(std::string_view input) {
  const auto [vocabulary, text] = two_files(input);
  MemoryFiles files;
  files["vocab.txt"] = vocabulary;
  for (const bool lowercase : {true, false}) {
    const auto tokenizer = load_wordpiece_tokenizer("vocab.txt", lowercase);
    const auto copy = tokenizer_from_blob(tokenizer->serialise());
    expect(copy->fingerprint() == tokenizer->fingerprint(), "a stored tokenizer is the same");
    UnknownWords unknown;
    const std::vector<int32_t> ids = tokenizer->encode(text, &unknown);
    expect(copy->encode(text) == ids, "words that were remembered have the same ids");
    tokenizer->decode(ids);
  }
}

}  // namespace linnet::fuzz
