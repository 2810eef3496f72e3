// A tokenizer.json, a line "====" and a text.
#include "data/tokenizer_json.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {

void read_input(std::string_view input) {
  const auto [json, text] = two_files(input);
  MemoryFiles files;
  files["tokenizer.json"] = json;
  const auto tokenizer = load_tokenizer_json("tokenizer.json");
  const auto copy = tokenizer_from_blob(tokenizer->serialise());
  expect(copy->fingerprint() == tokenizer->fingerprint(), "a stored tokenizer is the same");
  const std::vector<int32_t> ids = tokenizer->encode(text);
  expect(copy->encode(text) == ids, "words that were remembered have the same ids");
  tokenizer->decode(ids);
  for (const char* name : {"pad", "unk", "cls", "sep", "mask", "bos", "eos"})
    expect(tokenizer->special_id(name) < tokenizer->vocabulary_size(), "special ids are ids");
}

}  // namespace linnet::fuzz
